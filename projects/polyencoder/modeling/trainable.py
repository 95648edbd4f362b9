"""`TrainableModel`: the interface of rankers and of models in pre-training for a `Trainer`; freezing, compiling."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.checks import check_choice
from polyencoder.config import FineTuned
from polyencoder.errors import ConfigError
from polyencoder.modeling.lora import add_adapters, get_trained_state, load_trained, merge_adapters

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone


class TrainableModel(nn.Module):
    """The interface of models that a `Trainer` trains: rankers, and models in pre-training."""

    inference_only: tuple[nn.Module, ...] = ()
    """Frozen modules that compute in training as in inference, without dropout."""

    @property
    def new_parameters(self) -> list[nn.Parameter]:
        """The parts that a ranker adds to its encoder, random or default first, with a separate learning rate."""
        return []

    @property
    def never_trained(self) -> list[nn.Module]:
        """Modules that no training changes."""
        return []

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for module in self.inference_only:
            module.eval()
        return self

    @property
    def loss_scale(self) -> float | None:
        """The loss scale of a quantized model; None for other models."""
        return None

    @property
    def backbones(self) -> list[Backbone]:
        """The Hugging Face encoders of the model; none in a ConveRT."""
        from polyencoder.modeling.backbone import Backbone  # here: transformers' models take longer than torch

        return [module for module in self.modules() if isinstance(module, Backbone)]

    def explain_untrainable(self) -> str | None:
        """Why the weights cannot be trained, and what to do; None if they can."""
        if any(backbone.rounded for backbone in self.backbones):
            return "these weights were loaded in low precision: load the ranker without dtype to train it"
        return None

    # ---- LoRA

    is_adapted: bool = False
    """Whether the model has adapters beside its encoders' frozen weights."""

    def add_adapters(self, **options: Any) -> None:
        """Trains adapters (`lora.add_adapters`) in place of encoders' weights, but not of `inference_only` modules."""
        frozen = {id(part) for module in self.inference_only for part in module.modules()}
        add_adapters(self, [backbone for backbone in self.backbones if id(backbone) not in frozen], **options)
        self.is_adapted = True

    def merge_adapters(self) -> Self:
        """The model to save or export: itself or, with adapters, a copy in which they are merged."""
        if not self.is_adapted:
            return self
        model = merge_adapters(self)
        model.is_adapted = False
        return model

    def get_trained_state(self) -> dict[str, Tensor]:
        """The state to resume training from: all tensors or, with adapters, those that are trained."""
        return get_trained_state(self) if self.is_adapted else self.state_dict()

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `get_trained_state` gave. KeyError: a weight is missing."""
        if self.is_adapted:
            load_trained(self, state)
            return
        for name in self.state_dict():
            if name not in state:
                raise KeyError(name)
        self.load_state_dict(state)

    def candidate_modules(self) -> list[nn.Module]:
        """The modules that a candidate's vector depends on; none without vectors."""
        return []

    @property
    def has_foreign_candidates(self) -> bool:
        """Whether candidates' vectors are another encoder's, so that no weights compute them."""
        return False

    def token_modules(self) -> list[nn.Module]:
        """The modules between the candidate tower and a candidate's token vectors."""
        return []

    def after_batch(self) -> None:
        """Updates what depends on the number of batches, not on gradients; called after each training batch."""

    def explain_too_short(self, batches: int) -> str | None:
        """Why training needs more than this number of batches; None if it does not."""
        return None


FINE_TUNED = get_args(FineTuned)


def freeze(model: TrainableModel, *, fine_tuned: str, freeze_candidates: bool = False) -> None:
    """Freezes each backbone except the part `fine_tuned`; a ranker's other weights are trained.

    freeze_candidates: also all that a candidate's vector and token vectors depend on, computed as in inference, without
    dropout: an index of the initial model fits the trained one. ConfigError for an unknown part, weights loaded in low
    precision, or a model without a candidate side to freeze.
    """
    check_choice("fine_tuned", fine_tuned, FINE_TUNED)
    if reason := model.explain_untrainable():
        raise ConfigError(reason)
    for backbone in model.backbones:
        backbone.requires_grad_(fine_tuned == "all")
        if fine_tuned == "all":
            continue
        if fine_tuned == "all_encoder_layers":  # without layers there is a table alone, which is trained
            backbone.requires_grad_(True)
            backbone.get_embeddings().requires_grad_(not backbone.has_layers)
            continue
        layers = backbone.get_layers()
        for layer in list(layers)[-(1 if fine_tuned == "top_layer" else 4) :]:
            layer.requires_grad_(True)
    frozen = [*model.candidate_modules(), *model.token_modules()] if freeze_candidates else []
    if freeze_candidates and not frozen and not model.has_foreign_candidates:
        raise ConfigError("there are no vectors of candidates to keep", argument="freeze_candidates")
    frozen += model.never_trained
    for module in frozen:
        module.requires_grad_(False)
    model.inference_only = tuple(frozen)


def compile_encoders(model: TrainableModel, *, device: torch.device | str = "cpu") -> None:
    """Compiles the transformers in `model`, in place, on their first run. ConfigError: no compiler, or an old torch."""
    if not hasattr(torch.compiler, "is_exporting"):  # transformers calls it where it makes masks
        raise ConfigError(
            f"compiling needs torch 2.7 or later, this is {torch.__version__}: upgrade it, or do not compile",
            argument="compile",
        )
    if torch.device(device).type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise ConfigError(
                "compiling on a GPU needs the package `triton`: pip install triton, or do not compile",
                argument="compile",
            )
    else:
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            raise ConfigError(
                f"compiling needs a C++ compiler, but {compiler} is missing: install one (apt-get install g++), set "
                "the environment variable CXX, or do not compile",
                argument="compile",
            )
    for backbone in model.backbones:
        backbone.compile(dynamic=True)
