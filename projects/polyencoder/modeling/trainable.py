"""`TrainableModel`: what a `Trainer` needs of a model, which may be a ranker or one in pre-training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.modeling.lora import add_adapters, load_trained, merged, trained_state

if TYPE_CHECKING:
    from polyencoder.modeling.backbone import Backbone


class TrainableModel(nn.Module):
    """The interface of models that a `Trainer` trains: rankers, and models in pre-training."""

    inference_only: tuple[nn.Module, ...] = ()
    """Frozen modules that compute in training as in inference, without dropout."""

    @property
    def new_parameters(self) -> list[nn.Parameter]:
        """What a ranker adds to its encoder, from random or default numbers: trained at a learning rate of its own."""
        return []

    @property
    def never_trained(self) -> list[nn.Module]:
        """Modules that stay what they are in any training."""
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

    def why_not_trainable(self) -> str | None:
        """Why the weights cannot be trained, and what to do; None if they can."""
        if any(backbone.rounded for backbone in self.backbones):
            return "these weights were loaded in low precision: load the ranker without dtype to train it"
        return None

    # ---- LoRA

    is_adapted: bool = False
    """Whether it has adapters beside its encoders' frozen weights."""

    def add_adapters(self, **options: Any) -> None:
        """Trains adapters in the place of its encoders' weights; those of `inference_only` modules have none.

        Options and errors are those of `modeling.lora.add_adapters`.
        """
        frozen = {id(one) for module in self.inference_only for one in module.modules()}
        add_adapters(self, [one for one in self.backbones if id(one) not in frozen], **options)
        self.is_adapted = True

    def merged(self) -> Self:
        """The model to save or export: itself or, with adapters, a copy in which they are merged."""
        if not self.is_adapted:
            return self
        model = merged(self)
        model.is_adapted = False
        return model

    def trained_state(self) -> dict[str, Tensor]:
        """The state to resume training from: all tensors or, with adapters, those that are trained."""
        return trained_state(self) if self.is_adapted else self.state_dict()

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Restores `trained_state`."""
        if self.is_adapted:
            load_trained(self, state)
        else:
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

    def why_too_short(self, batches: int) -> str | None:
        """Why training needs more than this number of batches; None if it does not."""
        return None
