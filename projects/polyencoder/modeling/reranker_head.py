"""Reads the head of a trained reranker, a classifier of transformers with one label, for a cross-encoder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from polyencoder.config import DenseConfig, PairStart, Reduction
from polyencoder.errors import ConfigError, get_first_line, join_lines
from polyencoder.modeling.encoder_files import find_file, read_json
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.pooling import ACTIVATIONS
from polyencoder.text import TextEncoder

WEIGHTS = "model.safetensors"
_SEGMENTS = "token_type_ids"  # an input of models, which some tokenizers do not give

_TWO_LAYERS = ("classifier.dense", "tanh", "classifier.out_proj")
# `model_type` -> the hidden layer, its activation, the layer that scores
_LAYERS = {
    "albert": ("pooler", "tanh", "classifier"),
    "bert": ("pooler.dense", "tanh", "classifier"),
    "camembert": _TWO_LAYERS,
    "deberta-v2": ("pooler.dense", "gelu", "classifier"),
    "distilbert": ("pre_classifier", "relu", "classifier"),
    "electra": ("classifier.dense", "gelu", "classifier.out_proj"),
    "modernbert": ("head.dense", "gelu", "classifier"),
    "mpnet": _TWO_LAYERS,
    "roberta": _TWO_LAYERS,
    "xlm-roberta": _TWO_LAYERS,
}
_NORM = "head.norm"  # ModernBERT's, behind its hidden layer
_ACTIVATION = {"deberta-v2": "pooler_hidden_act", "modernbert": "classifier_activation"}  # the others' is fixed


@dataclass(frozen=True)
class RerankerHead:
    """The pooling and the hidden layer of a reranker; its weights, by their names in a `CrossEncoder`."""

    reduction: Reduction
    dense: DenseConfig
    weights: Mapping[str, Tensor]

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a `RankerConfig` that follow from it."""
        return {"reduction": self.reduction, "dense": (self.dense,)}

    def copy_to(self, model: nn.Module, *, origin: str) -> None:
        """Copies the weights into a cross-encoder."""
        try:
            model.load_state_dict(dict(self.weights), strict=False)
        except RuntimeError as error:
            raise ConfigError(f"{origin}: its classifier does not fit its encoder ({join_lines(error)})") from None


def read_classifier(name: str | os.PathLike[str]) -> str | None:
    """The class of a sequence classifier in a folder or hub repository, by its `config.json`; None for others."""
    models = (read_json(name, "config.json", dict) or {}).get("architectures") or []
    return next((str(model) for model in models if str(model).endswith("ForSequenceClassification")), None)


def read_reranker_head(name: str | os.PathLike[str]) -> RerankerHead | None:
    """Reads the head of a reranker from its folder or hub id; None for a model that is no classifier.

    ConfigError: a head of another kind, or without readable weights. CheckpointError: weights that are not finite.
    """
    classifier, config = read_classifier(name), read_json(name, "config.json", dict)
    if classifier is None:
        return None

    def build_refusal(reason: str) -> ConfigError:
        return ConfigError(
            f"{name}: {classifier} cannot be a cross-encoder: {reason}; to train one from its encoder alone, save that "
            "with transformers' AutoModel",
            argument="backbone",
        )

    family = config.get("model_type")
    if family not in _LAYERS:
        raise build_refusal(f"its family is {family}, not one of {', '.join(_LAYERS)}")
    hidden, activation, last = _LAYERS[family]
    activation = config.get(_ACTIVATION.get(family), activation)
    if activation not in ACTIVATIONS:
        raise build_refusal(f"its activation is {activation}, not one of {', '.join(ACTIVATIONS)}")
    weights = _read_tensors(name, {hidden: "dense.0", _NORM: "dense.2", last: "linear"})
    for ours, theirs in (("dense.0", hidden), ("linear", last)):
        if f"{ours}.weight" not in weights:
            raise build_refusal(f"its {WEIGHTS} has no {theirs}.weight")
    if (labels := len(weights["linear.weight"])) != 1:
        raise build_refusal(f"it has {labels} labels, and a score is one number")
    check_finite(weights.items(), origin=os.fspath(name))
    dense = DenseConfig(
        size=len(weights["dense.0.weight"]),
        activation=activation,
        bias="dense.0.bias" in weights,
        norm_eps=config.get("norm_eps", 1e-5) if "dense.2.weight" in weights else None,
    )
    for layer in ("dense.2", "linear"):
        if f"{layer}.weight" in weights:
            weights.setdefault(f"{layer}.bias", torch.zeros(len(weights[f"{layer}.weight"])))
    reduction: Reduction = "mean" if config.get("classifier_pooling") == "mean" else "first"
    return RerankerHead(reduction, dense, weights)


def read_pair_start(name: str | os.PathLike[str], text: TextEncoder) -> PairStart:
    """How the tokenizer of a reranker joins its pairs. ConfigError if rankers join pairs otherwise."""
    try:
        start = text.pair_start
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}", argument="backbone") from None
    inputs = (read_json(name, "tokenizer_config.json", dict) or {}).get("model_input_names") or [_SEGMENTS]
    return "same_segment" if start is False and _SEGMENTS not in inputs else start


def _read_tensors(name: str | os.PathLike[str], layers: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights and biases of `layers`, by their names in a cross-encoder; missing tensors are left out."""
    tensors: dict[str, Tensor] = {}
    if (path := find_file(name, WEIGHTS)) is None:
        raise ConfigError(
            f"{name}: a reranker's weights are read from one {WEIGHTS}, which is missing: save it with transformers' "
            "AutoModelForSequenceClassification, which writes that file",
            argument="backbone",
        )
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (no dict)
                layer, _, kind = key.rpartition(".")
                for theirs, ours in layers.items():
                    if f".{layer}".endswith(f".{theirs}"):
                        tensors[f"{ours}.{kind}"] = file.get_tensor(key).float()
    except SafetensorError as error:
        raise ConfigError(f"{path}: damaged or not a safetensors file ({get_first_line(error)})") from None
    return tensors
