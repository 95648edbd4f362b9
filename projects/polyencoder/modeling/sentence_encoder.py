"""Reads encoders that sentence-transformers saved, with the library's classes, as settings and weights of rankers."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from torch import nn

from polyencoder.config import Architecture, DenseConfig, Reduction
from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.encoder_config import get_max_length
from polyencoder.modeling.encoder_files import explaining_load, find_longest_input, read_json
from polyencoder.modeling.families import get_family
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.layout import MODULES, POOLINGS, SENTENCE_CONFIG
from polyencoder.modeling.pooling import ACTIVATIONS
from polyencoder.modeling.reranker_head import read_classifier, read_reranker_head

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

_log = logging.getLogger(__name__)

COSINE_SCALING = 4.47
"""`output_scaling` of normalized vectors: its square, 20, is the cosine's scale in the training of most encoders."""

_CONFIG_KEYS = ("__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
_PROMPT_NAMES = {"context_prompt": ("query",), "candidate_prompt": ("document", "passage", "corpus")}
_REDUCTIONS: dict[Any, Reduction] = {mode: reduction for reduction, mode in POOLINGS.items()}
_MODULES = re.compile("(Transformer,Pooling|StaticEmbedding)(,Dense)*(,Normalize)*")
_UNLIMITED = 1 << 20  # tokens
_LENGTHS = ("max_seq_length", "query_length", "document_length")
_TRANSFORMER = {  # the values of a Transformer's keys with which it is the transformer alone
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}


@dataclass(frozen=True)
class SentenceEncoder:
    """A sentence encoder without its transformer.

    fields: of a `RankerConfig`. dense: its linear layers. static: its table, if it has a table but no transformer.
    subfolder: of the transformer. lengths: maximum tokens, by sentence-transformers' names.
    """

    fields: Mapping[str, Any]
    pooling: str
    dense: tuple[nn.Linear, ...]
    static: StaticEmbedding | None = None
    subfolder: str = ""
    lower_case: bool = False
    lengths: Mapping[str, int] = field(default_factory=dict)


def read_sentence_encoder(name: str | os.PathLike[str]) -> SentenceEncoder | None:
    """Reads a sentence encoder's folder or hub id; None for other encoders.

    ConfigError: it has parts that rankers lack, or cannot be read. CheckpointError: weights that are not finite.
    """
    kinds = _list_kinds(name)
    if not _is_sentence_encoder(kinds):
        return None
    modules = read_json(name, MODULES, list)
    config = read_json(name, SENTENCE_CONFIG, dict) or {}
    similarity, order = config.get("similarity_fn_name"), ",".join(kind for kind in kinds if kind != "Dropout")
    are_theirs = [str(module.get("type")).startswith("sentence_transformers.") for module in modules]
    if not all(are_theirs) or not _MODULES.fullmatch(order):
        raise _build_refusal(name, f"modules.json has {', '.join(str(module.get('type')) for module in modules)}")
    if similarity not in (None, "cosine", "dot"):
        raise _build_refusal(name, f"the similarity {similarity}")
    if unknown := [key for key in config if key not in _CONFIG_KEYS]:
        raise _build_refusal(name, f"{SENTENCE_CONFIG} has {unknown[0]}")
    from sentence_transformers.base.modules import Dense, Transformer  # here: it takes a second
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding

    fields: dict[str, Any] = {} if config.get("truncate_dim") is None else {"vector_dim": config["truncate_dim"]}
    if "Normalize" in kinds or similarity != "dot":  # cosine is sentence-transformers' default
        fields |= {"normalize": True, "output_scaling": COSINE_SCALING}
    attributes: dict[str, Any] = {"pooling": "mean"}
    layers: list[Dense] = []
    with explaining_load(name) as offline:
        for module, kind in zip(modules, kinds, strict=True):
            options: dict[str, Any] = {"subfolder": _get_folder(name, module), **offline}
            if kind == "Transformer":
                attributes["subfolder"] = options["subfolder"]
                attributes |= _read_transformer(name, Transformer.load_config(os.fspath(name), **options))
            elif kind == "StaticEmbedding":
                attributes["static"] = StaticEmbedding.load(os.fspath(name), **options)
                fields["reduction"] = "mean"
            elif kind == "Pooling":
                pooling = Pooling.load(os.fspath(name), **options)
                attributes["pooling"] = pooling.pooling_mode
                fields |= {"reduction": _REDUCTIONS[mode]} if (mode := pooling.pooling_mode) in _REDUCTIONS else {}
                fields |= {} if pooling.include_prompt else {"prompt_tokens": (0, 0)}  # completed with the tokenizer
            elif kind == "Dense":
                layers.append(Dense.load(os.fspath(name), **options))
    if layers:
        fields["dense"] = tuple(_read_dense(name, layer) for layer in layers)
    return SentenceEncoder(fields, dense=tuple(layer.linear for layer in layers), **attributes)


def _read_transformer(name: str | os.PathLike[str], config: dict[str, Any]) -> dict[str, Any]:
    """A transformer's file as fields of a `SentenceEncoder`."""
    lengths = {key: config.pop(key) for key in _LENGTHS if config.get(key)}
    lower_case = bool(config.pop("do_lower_case", False))
    config.pop("unpad_inputs", None)  # changes no vector
    for key, value in config.items():
        if value != _TRANSFORMER.get(key) and value not in (None, {}):
            raise _build_refusal(name, f"its Transformer has {key} {value!r:.80}")
    return {"lower_case": lower_case, "lengths": lengths}


def _read_dense(name: str | os.PathLike[str], layer: Any) -> DenseConfig:
    activation, linear = type(layer.activation_function).__name__.lower(), layer.linear
    named = {layer.module_input_name, layer.module_output_name}
    if activation not in ACTIVATIONS or layer.use_residual or named != {"sentence_embedding"}:
        raise _build_refusal(name, f"a Dense with the settings {layer.get_config_dict()}")
    check_finite(linear.named_parameters(), origin=f"{name}, a Dense")
    bias = linear.bias is not None
    return DenseConfig(size=linear.out_features, activation=activation, bias=bias)  # type: ignore[arg-type]


def _build_refusal(name: str | os.PathLike[str], problem: str) -> ConfigError:
    return ConfigError(
        f"{name}: {problem}, which rankers do not have: a Transformer, its Pooling, Dense with an activation of torch, "
        "Normalize; in a copy without modules.json its transformer can be used alone",
        argument="backbone",
    )


def _list_kinds(name: str | os.PathLike[str]) -> list[str]:
    """The names of the modules' classes."""
    modules = read_json(name, MODULES, list) or []
    if not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{name}: modules.json is no list of modules")
    return [str(module.get("type", "")).rpartition(".")[2] for module in modules]


def _is_sentence_encoder(kinds: Collection[str]) -> bool:
    return "Pooling" in kinds or "StaticEmbedding" in kinds


def _get_folder(name: str | os.PathLike[str], module: dict[str, Any]) -> str:
    """The folder of a module, inside the encoder's."""
    folder = PurePosixPath(str(module.get("path", "")))
    if folder.is_absolute() or ".." in folder.parts:
        raise ConfigError(f"{name}: modules.json names a folder outside of its own, {folder}")
    return "" if folder == PurePosixPath() else folder.as_posix()


def read_architecture(name: str | os.PathLike[str]) -> Architecture:
    """The architecture in which an encoder ranks without training: "cross" for a classifier, a reranker; else "bi"."""
    return "cross" if read_sentence_encoder(name) is None and read_classifier(name) else "bi"


def read_config_fields(
    name: str | os.PathLike[str], architecture: Architecture, *, explicit: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a `RankerConfig` that follow from a sentence encoder, except the `explicit` ones; logs them.

    A cross-encoder gets those of a reranker's head. Empty for an unreachable hub id, and for other encoders: a warning
    names trained layers behind the transformer. Raises as `read_sentence_encoder` and `read_reranker_head` do.
    """
    encoder, has_vectors = read_sentence_encoder(name), get_family(architecture).can.has_vectors
    if encoder is None:
        if not has_vectors and (head := read_reranker_head(name)) is not None:
            _log.info("%s is a trained reranker: the cross-encoder begins with its scores", name)
            return {field: value for field, value in head.fields.items() if field not in explicit}
        if layers := describe_left_out(name):
            _log.warning("%s: only its transformer is taken, not its %s: train before you use it", name, layers)
        return {}
    if not {"reduction"} & {*encoder.fields, *explicit}:
        raise ConfigError(f"{name}: its pooling, {encoder.pooling}, is not supported", argument="reduction")
    excluded = {*explicit}
    if explicit.get("normalize") is False:
        excluded.add("output_scaling")  # its scaling is the cosine's
    excluded |= set() if has_vectors else {*encoder.fields} - {"reduction"}
    fields = {key: value for key, value in encoder.fields.items() if key not in excluded}
    listed = ", ".join(f"{key} {value}" for key, value in fields.items())
    _log.info("%s is a sentence encoder (modules.json): %s", name, listed or "settings are given")
    return fields


def read_lengths(name: str | os.PathLike[str], backbone: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `TextConfig` with which an encoder reads as much of a text as it can, from the beginning."""
    encoder = read_sentence_encoder(name)
    longest = find_longest_input(name, backbone, folder=encoder.subfolder if encoder else "")
    lengths: Mapping[str, int] = {}
    if encoder is not None and encoder.static is not None:
        longest = _UNLIMITED
    elif encoder is not None:
        lengths = encoder.lengths
        longest = min(lengths.get("max_seq_length", longest), get_max_length({**backbone}) or _UNLIMITED)
    query, document = (min(lengths.get(key, longest), longest) for key in ("query_length", "document_length"))
    return {"text_truncate": query, "label_truncate": document, "truncation_side": "right"}


def describe_left_out(name: str | os.PathLike[str]) -> str:
    """The trained layers behind the transformer of an encoder without a pooling: a reranker's, a ColBERT's."""
    modules, classifier = _list_kinds(name), read_classifier(name)
    if _is_sentence_encoder(modules):
        return ""
    return ", ".join(modules[1:] or ([f"classifier ({classifier})"] if classifier else []))


def start_from_dense(model: RankerModel, name: str | os.PathLike[str]) -> None:
    """Copies the weights of a sentence encoder's linear layers, or of a reranker's head, into those of a new model."""
    if not model.config.dense:
        return
    encoder = read_sentence_encoder(name)
    if encoder is None and not model.has_vectors and (head := read_reranker_head(name)) is not None:
        return head.copy_to(model, origin=os.fspath(name))
    for key, module in model.named_children():
        if encoder and key in ("dense", "own_candidate_dense") and isinstance(module, nn.Sequential):
            linears = (layer for layer in module if isinstance(layer, nn.Linear))
            for linear, layer in zip(linears, encoder.dense, strict=True):
                linear.load_state_dict(layer.state_dict())


def read_prompts(name: str | os.PathLike[str], *, explicit: Collection[str] = ()) -> dict[str, str]:
    """The fields of a `TextConfig` that are prompts of a sentence encoder, except the `explicit` ones; logs them.

    A context's is the prompt `query`, a candidate's the first of `document`, `passage` and `corpus`; without one
    of these names the default prompt. A reranker's default prompt is for contexts, others are unused. Empty for an
    encoder without prompts, or an unreachable hub id.

    Raises:
        ConfigError: the file cannot be read, or its prompts are not texts by name.
    """
    config = read_json(name, SENTENCE_CONFIG, dict) or {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    is_valid = isinstance(prompts, dict) and all(isinstance(prompt, str) for prompt in prompts.values())
    if not is_valid or (default is not None and default not in [*prompts]):
        raise ConfigError(f"{name}: {SENTENCE_CONFIG} has no valid prompts: texts by name, one of them the default")
    pairs = config.get("model_type") == "CrossEncoder"
    chosen: dict[str, str] = {}
    for key, names in ({"context_prompt": ()} if pairs else _PROMPT_NAMES).items():
        prompt = next((prompts[label] for label in (*names, default) if label in prompts), "")
        if prompt and key not in explicit:
            chosen[key] = prompt
    if chosen:
        _log.info("%s: %s", name, ", ".join(f"{key} {text!r}" for key, text in chosen.items()))
    return chosen
