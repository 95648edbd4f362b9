"""Reads a sentence encoder's prompts, pooling and normalization from the files of sentence-transformers."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from torch import nn

from polyencoder.config import Architecture, DenseConfig, Reduction
from polyencoder.errors import ConfigError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.dense import ACTIVATIONS, set_dense_weights
from polyencoder.modeling.encoder_files import file_of, json_of
from polyencoder.modeling.families import family
from polyencoder.modeling.reranker_head import classifier_of, reranker_head

_log = logging.getLogger(__name__)

COSINE_SCALING = 4.47
"""`output_scaling` of normalized vectors: its square, 20, is the cosine's scale that most were trained with."""

STATIC = "StaticEmbedding"
"""The module of an encoder without layers."""

CONFIG = "config_sentence_transformers.json"

# The names of prompts for contexts and candidates, as in `encode_query` and `encode_document`
_PROMPT_NAMES = {"context_prompt": ("query",), "candidate_prompt": ("document", "passage", "corpus")}
_OF_PAIRS: dict[str, tuple[str, ...]] = {"context_prompt": ()}  # of a CrossEncoder: the default alone

# sentence-transformers' pooling modes -> reductions
_REDUCTIONS: dict[str, Reduction] = {
    "cls": "first",
    "mean": "mean",
    "max": "max",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}


@dataclass(frozen=True)
class SentenceVectors:
    """A sentence encoder's pooling and normalization.

    pooling: the names of its pooling modes, usually one. cosine: whether vectors are compared by cosine, else by dot
    product. include_prompt: whether a prompt's tokens are pooled, too. dense: its linear layers, with the files of
    their weights in `dense_files`. unknown: a module that rankers do not have.
    """

    pooling: tuple[str, ...]
    cosine: bool
    include_prompt: bool = True
    dense: tuple[DenseConfig, ...] = ()
    dense_files: tuple[str, ...] = ()
    unknown: str | None = None

    @property
    def reduction(self) -> Reduction | None:
        """The reduction equivalent to this pooling; None without one."""
        return _REDUCTIONS.get(self.pooling[0]) if len(self.pooling) == 1 else None

    @property
    def pooling_name(self) -> str:
        """The pooling modes, for messages."""
        return " and ".join(self.pooling) or "none"

    def fields(self, architecture: Architecture, *, given: Collection[str] = ()) -> dict[str, Any]:
        """The fields of a `RankerConfig` that follow from it, except the `given` ones."""
        fields: dict[str, Any] = {} if self.reduction is None else {"reduction": self.reduction}
        if family(architecture).can.has_vectors:  # a cross-encoder compares none
            fields |= {"normalize": True, "output_scaling": COSINE_SCALING} if self.cosine else {}
            fields |= {"dense": self.dense} if self.dense else {}
            fields |= {} if self.include_prompt else {"prompt_tokens": (0, 0)}  # completed with the tokenizer
        return {name: value for name, value in fields.items() if name not in given}


def sentence_vectors(name: str | os.PathLike[str]) -> SentenceVectors | None:
    """Reads an encoder's pooling and normalization from its folder or hub id; None if it is no sentence encoder.

    Raises:
        ConfigError: a configuration file cannot be read.
    """
    modules = json_of(name, "modules.json", list)
    if modules is None:
        return None
    modules = [module for module in modules if isinstance(module, dict)]
    kinds = [_kind(module) for module in modules]
    pooled = 0 if kinds[:1] == [STATIC] else kinds.index("Pooling") if "Pooling" in kinds else None
    if pooled is None:
        return None
    folder = _folder(name, modules[pooled])
    pooling = {"pooling_mode": "mean"} if kinds[pooled] == STATIC else json_of(name, f"{folder}/config.json", dict)
    if pooling is None:
        raise ConfigError(f"{name}: modules.json names {folder}/config.json, which does not exist")
    similarity = (json_of(name, CONFIG, dict) or {}).get("similarity_fn_name")
    layers: list[DenseConfig] = []
    files: list[str] = []
    unknown = None
    for place, kind in enumerate(kinds):
        if kind == "Dense" and place > pooled and "Normalize" not in kinds[:place]:
            path = _folder(name, modules[place])
            own, weights = json_of(name, f"{path}/config.json", dict), file_of(name, f"{path}/model.safetensors")
            layer = None if own is None or weights is None else _dense(own)
            if layer is not None:
                layers.append(layer)
                files.append(str(weights))
                continue
        if kind not in (("Transformer", "Pooling", "Normalize", "Dropout") if place else ("Transformer", STATIC)):
            unknown = unknown or f"{kind} (module {place})"
        elif kind in ("Transformer", "Pooling") and {kind, STATIC} & {*kinds[:place]}:
            unknown = unknown or f"a second {kind} (module {place})"
    return SentenceVectors(
        _modes(pooling),
        cosine="Normalize" in kinds or similarity in (None, "cosine"),  # None: sentence-transformers' default
        include_prompt=pooling.get("include_prompt") is not False,
        dense=tuple(layers),
        dense_files=tuple(files),
        unknown=unknown,
    )


def static_file(name: str | os.PathLike[str], file: str) -> str | None:
    """The path of a file of a folder or hub id whose encoder is a `StaticEmbedding`; None for other encoders.

    Raises:
        ConfigError: the encoder has no such file.
    """
    modules = json_of(name, "modules.json", list)
    if not modules or not isinstance(modules[0], dict) or _kind(modules[0]) != STATIC:
        return None
    place = (_folder(name, modules[0]) / file).as_posix()
    path = file_of(name, place)
    if path is None:
        raise ConfigError(f"{name}: modules.json has a {STATIC}, but there is no {place}", argument="backbone")
    return path


def own_architecture(name: str | os.PathLike[str]) -> Architecture:
    """The architecture as which an encoder ranks without training: that of a reranker, if it is a classifier."""
    return "cross" if sentence_vectors(name) is None and classifier_of(name) else "bi"


def own_fields(name: str | os.PathLike[str], architecture: Architecture, *, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `RankerConfig` that follow from a sentence encoder, except the `given` ones; logs them.

    A cross-encoder gets those of a trained reranker's head. Empty for an unreachable hub id, and for other encoders: a
    warning names trained layers behind the transformer. Raises as `sentence_vectors` and `reranker_head` do, and for
    what rankers do not have.
    """
    vectors = sentence_vectors(name)
    if vectors is None:
        if not family(architecture).can.has_vectors and (head := reranker_head(name)) is not None:
            _log.info("%s is a trained reranker: the cross-encoder begins with its scores", name)
            return {field: value for field, value in head.fields.items() if field not in given}
        if layers := _left_out(name):
            _log.warning("%s: only its transformer is taken, not its %s: train before you use it", name, layers)
        return {}
    own = ("output_scaling",) if given.get("normalize") is False else ()  # its scaling is the cosine's
    fields = vectors.fields(architecture, given=(*given, *own))
    shown = ", ".join(f"{field} {value}" for field, value in fields.items())
    _log.info("%s is a sentence encoder (modules.json): %s", name, shown or "settings are given")
    if vectors.reduction is None and "reduction" not in given:
        raise ConfigError(f"{name}: its pooling, {vectors.pooling_name}, is not supported", argument="reduction")
    if vectors.unknown:
        raise ConfigError(
            f"{name}: modules.json has {vectors.unknown}, which rankers do not have: a Transformer, its Pooling, Dense "
            "with an activation of torch, Normalize; in a copy without modules.json its transformer can be used alone",
            argument="backbone",
        )
    return fields


def start_from_dense(model: RankerModel, name: str | os.PathLike[str]) -> None:
    """Gives the linear layers of a new model the weights of the sentence encoder's, or of the reranker's head."""
    if not model.config.dense:
        return
    vectors = sentence_vectors(name)
    if vectors is None and not model.has_vectors and (head := reranker_head(name)) is not None:
        return head.copy_to(model, origin=os.fspath(name))
    for key, module in model.named_children():
        if key in ("dense", "own_candidate_dense") and isinstance(module, nn.Sequential):
            set_dense_weights(module, vectors.dense_files if vectors else ())


def _kind(module: dict[str, Any]) -> str:
    """The name of a module's class."""
    return str(module.get("type", "")).rpartition(".")[2]


def _left_out(name: str | os.PathLike[str]) -> str:
    """The trained layers behind the transformer of an encoder without a pooling: a reranker's, a ColBERT's."""
    modules = [_kind(module) for module in json_of(name, "modules.json", list) or [] if isinstance(module, dict)]
    classifier = classifier_of(name)
    return ", ".join(modules[1:] or ([f"classifier ({classifier})"] if classifier else []))


def _folder(name: str | os.PathLike[str], module: dict[str, Any]) -> PurePosixPath:
    """The folder of a module, inside the encoder's."""
    folder = PurePosixPath(str(module.get("path", "")))
    if folder.is_absolute() or ".." in folder.parts:
        raise ConfigError(f"{name}: modules.json names a folder outside of its own, {folder}")
    return folder


def _dense(config: dict[str, Any]) -> DenseConfig | None:
    """A linear layer from its configuration; None for one that rankers do not have."""
    of_torch, _, activation = str(config.get("activation_function", "torch.Tanh")).rpartition(".")
    named = (config.get("module_input_name"), config.get("module_output_name"))
    if config.get("use_residual") or not of_torch.startswith("torch") or activation.lower() not in ACTIVATIONS:
        return None
    if any(one not in (None, "sentence_embedding") for one in named):
        return None
    return DenseConfig(config.get("out_features", 0), activation.lower(), config.get("bias", True))  # type: ignore[arg-type]


def own_prompts(name: str | os.PathLike[str], *, given: Collection[str] = ()) -> dict[str, str]:
    """The fields of a `TextConfig` that are prompts of a sentence encoder, except the `given` ones; logs them.

    A context's is the prompt `query`, a candidate's the first of `document`, `passage` and `corpus`; without one
    of these names the default prompt. A reranker's default prompt is for contexts, others are unused. Empty for an
    encoder without prompts, or an unreachable hub id.

    Raises:
        ConfigError: the file cannot be read, or its prompts are not texts by name.
    """
    config = json_of(name, CONFIG, dict) or {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    is_valid = isinstance(prompts, dict) and all(isinstance(one, str) for one in prompts.values())
    if not is_valid or (default is not None and default not in [*prompts]):
        raise ConfigError(f"{name}: {CONFIG} has no valid prompts: texts by their names, one of them the default")
    found: dict[str, str] = {}
    fields = _OF_PAIRS if config.get("model_type") == "CrossEncoder" else _PROMPT_NAMES
    for field, names in fields.items():
        own = next((one for one in (*names, default) if one in prompts), None)
        if own is not None and prompts[own] and field not in given:
            found[field] = prompts[own]
    if found:
        _log.info("%s: %s", name, ", ".join(f"{field} {text!r}" for field, text in found.items()))
    return found


def _modes(pooling: dict[str, Any]) -> tuple[str, ...]:
    """The pooling modes: `pooling_mode` names them; older files have a key for each."""
    named = pooling.get("pooling_mode")
    if named is not None:
        return (named,) if isinstance(named, str) else tuple(map(str, named))
    keys = (key for key, value in pooling.items() if key.startswith("pooling_mode_") and value is True)
    return tuple(key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for key in keys)
