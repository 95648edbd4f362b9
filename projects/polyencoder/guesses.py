"""Names that people bring from other libraries or an older version, each with what to use here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

from polyencoder.errors import suggest_similar


class Dataclass(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T")
Options = TypeVar("Options", bound=Dataclass)

NAMES = {
    **dict.fromkeys(("BiEncoder", "PolyEncoder", "SentenceTransformer"), "Ranker.load(name) loads any model"),
    "CrossEncoder": "Ranker.load(name) loads any model, and rank(context, candidates) orders candidates",
    "load": "Ranker.load(name) loads a model",
    "from_pretrained": "Ranker.from_pretrained(name) loads a model",
    "rank": "Ranker.load(name).rank(context, candidates) orders candidates",
    "train": "polyencoder.training.train_ranker(TrainSettings(...)) trains",
    "open_index": "polyencoder.index.open_index(where, ranker) opens an index",
}
"""Names that callers look for in the package, and what to use."""

ATTRIBUTES = {
    "predict": "score(contexts, candidates) gives the matrix of scores, rank(context, candidates) their order",
    "save": "save_pretrained(folder) writes the model",
    "similarity": "score(contexts, candidates) gives the matrix of scores",
    "rerank": "rank(context, candidates) orders candidates",
    **dict.fromkeys(("cuda", "cpu"), "to(device) moves the model"),
    "half": "Ranker.from_pretrained(name, dtype='float16') loads it so",
    "eval": "a loaded ranker is in evaluation mode; ranker.model is the torch module",
    "tokenizer": "ranker.text makes tokens of texts",
    "max_seq_length": "ranker.text.config has text_truncate and label_truncate",
    "fit": "polyencoder.training.train_ranker(TrainSettings(...)) trains",
    "train": "polyencoder.training.train_ranker(TrainSettings(...)) trains",
}
"""Methods and attributes that callers look for in a ranker, and what to use."""

_LENGTHS = (
    "Ranker.from_backbone(name, share_encoders=True, text={'text_truncate': 128, 'label_truncate': 128}) sets how many "
    "tokens are read"
)
PARAMETERS: dict[str, tuple[str, ...] | str] = {
    "query": ("context", "contexts"),
    "queries": ("contexts", "queries"),
    "documents": ("candidates", "index"),
    "docs": ("candidates", "index"),
    "passages": ("candidates", "index"),
    "corpus": ("candidates", "index"),
    "sentences": ("texts", "candidates", "contexts"),
    "inputs": ("texts", "contexts"),
    "top_n": ("top_k",),
    "k": ("top_k",),
    "limit": ("top_k",),
    "filters": ("filter",),
    "path": ("where",),
    "folder": ("where",),
    "out": ("where",),
    "model_name_or_path": ("name", "model", "backbone"),
    "model_name": ("name",),
    "torch_dtype": ("dtype", "model_dtype"),
    "normalize_embeddings": ("normalize",),
    "show_progress_bar": ("progress",),
    "convert_to_tensor": "vectors are arrays of NumPy, and torch.from_numpy(vectors) makes a tensor of them",
    "convert_to_numpy": "vectors are arrays of NumPy",
    "return_documents": "each result has its text",
    "max_length": _LENGTHS,
    "max_seq_length": _LENGTHS,
    "trust_remote_code": "code that comes with a model is never run",
    "revision": "huggingface_hub.snapshot_download(name, revision=COMMIT) returns a folder that loads",
    "cache_dir": "the environment's HF_HOME is the folder of downloads",
    "cache_folder": "the environment's HF_HOME is the folder of downloads",
    "local_files_only": "the environment's HF_HUB_OFFLINE=1 forbids downloads",
}
"""Parameters, and their names here, the first that a function has, or a sentence without its full stop."""

_SESSIONS = "clients send the whole dialogue as messages to /v1/chat"
REMOVED: dict[str, str] = {
    "find_batch_size": "give grad_cache (a cross-encoder: pair_tokens), halved until a batch fits the memory",
    **dict.fromkeys(
        ("hard_negative_margin", "hard_negative_relative_margin", "margin", "relative_margin"),
        "max_positive_similarity leaves out negatives that are likely to be right",
    ),
    "partial": "a search has one index; what does not fit one folder is in Milvus, index milvus:ADDRESS",
    **dict.fromkeys(("sessions", "max_sessions", "session_seconds"), _SESSIONS),
    "otel": "run `opentelemetry-instrument polyencoder serve ...` of the package opentelemetry-instrumentation",
    "sentencepiece_model": "models with a vocabulary of sentencepiece cannot be imported",
    **dict.fromkeys(
        ("language", "tokenized"), "polyencoder import had it for encoders of XLM, which cannot be imported"
    ),
    "fusion": "hybrid is reciprocal rank fusion",
    "vector_weight": "hybrid is reciprocal rank fusion, which weighs words and vectors alike",
}
"""Removed settings, of any command, file or function, each with its replacement."""


def explain_removed(name: str) -> str:
    """The end of a message about an unknown name, if it was a setting that was removed; else ""."""
    return f"; it was removed: {REMOVED[name]}" if name in REMOVED else ""


def guess(name: str, allowed: Collection[str]) -> str:
    """The hint at a parameter's name among the allowed ones, such as "; it is top_k here"; "" without one."""
    names = PARAMETERS.get(name, ())
    if isinstance(names, str):
        return f"; {names}"
    return next((f"; it is {similar} here" for similar in names if similar in allowed), "")


def hint_arguments(cls: type[T]) -> type[T]:
    """Class decorator: wrong arguments of its public methods are a TypeError with the hint of `guess`.

    It names the class whose method is called, which may be a subclass.
    """
    for name, value in [*vars(cls).items()]:
        is_classmethod = isinstance(value, classmethod)
        function = value.__func__ if is_classmethod else value
        if inspect.isfunction(function) and not name.startswith("_"):
            checked = _check_arguments(function)
            setattr(cls, name, classmethod(checked) if is_classmethod else checked)
    return cls


def change_options(options: Options, changes: Mapping[str, Any]) -> Options:
    """The options with these fields changed. TypeError for an unknown field, with the hint of `guess`."""
    names = [field.name for field in fields(options)]
    for name in changes:
        if name not in names:
            raise TypeError(f"there is no option {name!r}{_format_hint(name, names)}")
    return replace(options, **changes)


def _check_arguments(function: Callable[..., T]) -> Callable[..., T]:
    signature = inspect.signature(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    names = [name for name, field in signature.parameters.items() if field.kind is not field.VAR_KEYWORD][1:]

    @functools.wraps(function)
    def call(owner: Any, *values: Any, **named: Any) -> T:
        method = f"{(owner if isinstance(owner, type) else type(owner)).__name__}.{function.__name__}()"
        for name in named:
            if name not in names and (guess(name, names) or not takes_any):
                raise TypeError(f"{method} has no parameter {name!r}{_format_hint(name, names)}")
        try:
            signature.bind(owner, *values, **named)
        except TypeError as error:
            raise TypeError(f"{method}: {error}") from None
        return function(owner, *values, **named)

    return call


def _format_hint(name: str, allowed: Collection[str]) -> str:
    return guess(name, allowed) or explain_removed(name) or suggest_similar(name, allowed, listed=False)
