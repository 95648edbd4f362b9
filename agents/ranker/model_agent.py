"""The half of our agents that has to do with weights: building, loading, saving and optimising the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import parlai.utils.logging as logging
from parlai.agents.ranker.architecture import (
    check_architecture,
    describe_in_opt,
    describe_parlai_model,
    fine_tuned_part,
    pooling_of_backbone,
    pooling_of_checkpoint,
    ranker_config,
    scratch_backbone,
)
from parlai.agents.ranker.args import add_ranker_args, fill_in_defaults
from parlai.agents.ranker.console import explain_errors, hide_options
from parlai.agents.ranker.dictionary import RankerDictionary
from parlai.agents.ranker.flags import (
    check_encoder,
    check_flags,
    check_origin,
    check_ranker,
    check_special_tokens,
    given_flags,
)
from parlai.agents.ranker.learning.optimizer import parameter_groups
from parlai.agents.ranker.learning.schedule import build_schedule
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_ranker_agent import TorchRankerAgent

from polyencoder.checkpoint import CONFIG_KEY, load_weights
from polyencoder.config import Architecture, RankerConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing import is_parlai_model, read_ranker_file
from polyencoder.importing.options import read_options
from polyencoder.modeling import RankerModel, build_model, freeze
from polyencoder.modeling.backbone import Backbone, backbone_config, load_pretrained, with_dropout
from polyencoder.modeling.bf16 import why_bf16_gains_nothing
from polyencoder.modeling.compiling import compile_encoders
from polyencoder.modeling.transfer import transfer_weights
from polyencoder.safe_load import plain_numbers


class RankerModelAgent(TorchRankerAgent):
    """ParlAI's ranker agent around a model of the library."""

    architecture: ClassVar[Architecture]
    planned_updates: int | None = None
    """How many updates the training run has, if it is one and anybody knows."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        explain_errors(parser)
        hide_options()
        add_ranker_args(parser, partial_opt)
        return parser

    @staticmethod
    def dictionary_class() -> type[RankerDictionary]:
        return RankerDictionary

    def __new__(cls, opt: Opt, shared: dict[str, Any] | None = None) -> RankerModelAgent:
        """Whoever makes an agent in Python need not know all of its flags; no `__init__` has read them yet."""
        if not shared:
            fill_in_defaults(cls, opt)
        agent: RankerModelAgent = super().__new__(cls)
        return agent

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if not shared and opt.get("model_file") and is_parlai_model(opt["model_file"]):
            describe_parlai_model(opt)
        if not shared:
            check_flags(opt, is_cross=self.architecture == "cross")
        self._checkpoint: tuple[RankerConfig, dict[str, Any]] | None = None
        self._is_finetune = False
        self._scaling_is_to_be_measured = False
        super().__init__(opt, shared)
        if not shared:
            self._say_what_precision_gains()

    def _say_what_precision_gains(self) -> None:
        """Warn of a precision that this machine does not have. A model that was trained with it runs all the same."""
        if self.opt.get("fp16") and self.opt.get("bf16"):
            raise ConfigError("--fp16 true and --bf16 true exclude each other: choose one")
        if self.opt.get("fp16") and not self.use_cuda:
            logging.warning("--fp16 true needs a GPU: computing in float32. On a CPU --bf16 true may be faster")
        device = "cuda" if self.use_cuda else "cpu"
        if self.opt.get("bf16") and (reason := why_bf16_gains_nothing(device)):
            logging.warning(f"--bf16 true gains nothing here: {reason}")

    @property
    def ranker(self) -> RankerModel:
        """The model itself, without what distributed training wraps around it."""
        model: RankerModel = getattr(self.model, "module", self.model)
        return model

    def build_dictionary(self) -> RankerDictionary:
        path, is_finetune = self._get_init_model(self.opt, None)
        check_origin(self.opt, path, is_finetune=is_finetune)
        dictionary: RankerDictionary = super().build_dictionary()
        check_special_tokens(self.opt, dictionary.special_tokens_opt())
        self.opt.update(dictionary.special_tokens_opt())
        return dictionary

    def build_model(self) -> RankerModel:
        """A model of the checkpoint's shape when one is loaded next, else a new one."""
        opt, text = self.opt, self.dict.text
        path, self._is_finetune = self._get_init_model(opt, None)
        pretrained, pooling, origin = None, {}, ""
        given = given_flags(opt)  # an encoder keeps its own dropout unless the command says otherwise
        dropout = {name: given.get(name) for name in ("dropout", "attention_dropout")}
        if path:
            if not self._is_finetune and self._should_initialize_optimizer() and _is_in_loop(opt, path):
                self.refuse_to_overwrite()
            origin = f"{'--init-model' if self._is_finetune else '--model-file'} {path}"
            self._checkpoint = read_ranker_file(path)
            pooling = pooling_of_checkpoint(self._checkpoint[0], self.architecture)
            backbone = with_dropout(self._checkpoint[0].backbone, **dropout)
        elif opt.get("backbone"):
            origin = f"--backbone {opt['backbone']}"
            pretrained = load_pretrained(opt["backbone"], **dropout)
            if pretrained.resize(len(text)) and fine_tuned_part(opt) != "all":
                logging.warning(
                    "the embeddings of added tokens do not learn: set --type-optimization all if they should"
                )
            backbone = backbone_config(pretrained.model)
            pooling = pooling_of_backbone(opt, self.architecture)
        else:
            backbone = scratch_backbone(opt, vocabulary_size=len(text), pad_id=text.pad_id)
        if self._checkpoint and not self._is_finetune:
            check_architecture(self.architecture, self._checkpoint[0], path=str(path))
            check_ranker(opt, self._checkpoint[0], origin=origin)
        if origin:
            check_encoder(opt, backbone, origin=origin)
        if self._checkpoint and not self._is_finetune:
            config = dataclasses.replace(self._checkpoint[0], backbone=backbone, text=text.config)
        else:
            config = ranker_config(opt, self.architecture, backbone=backbone, text=text.config, otherwise=pooling)
            self._scaling_is_to_be_measured = opt.get("output_scaling") == "auto"
        describe_in_opt(opt, config)
        model = build_model(config, pretrained)
        freeze(model, fine_tuned=fine_tuned_part(opt))
        if opt.get("compile") and self._should_initialize_optimizer():
            compile_encoders(model, device="cuda" if self.use_cuda else "cpu")
        return model

    def refuse_to_overwrite(self) -> None:
        """Raise CheckpointError if what is learnt would be saved over a model that ParlAI's own agents trained."""
        path = self.opt.get("model_file")
        if path and is_parlai_model(path):
            raise CheckpointError(
                f"--model-file {path} is ParlAI's own model, which training would overwrite: give a new --model-file, "
                f"and start from this one with --init-model {path}"
            )

    def load(self, path: str) -> dict[str, Any]:
        """Load a checkpoint's weights, read without running any code that it might hold, and give all its states."""
        _, states = self._checkpoint or read_ranker_file(path)
        self._checkpoint = None
        if self._is_finetune:
            fresh = transfer_weights(self.ranker, states["model"], origin=path)
            logging.info(f"starting from {path}" + (f"; not in it, so random: {', '.join(fresh)}" if fresh else ""))
        else:
            load_weights(self.ranker, states["model"], origin=path)
        self._make_room_for_tokens()
        return states

    def _make_room_for_tokens(self) -> None:
        """Give tokens that the checkpoint did not have (`--special-tok-lst`, `--person-tokens`) embeddings."""
        model, size = self.ranker, len(self.dict.text)
        if size <= model.config.backbone["vocab_size"]:
            return
        for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
            backbone.resize(size)
        model.config = dataclasses.replace(model.config, backbone={**model.config.backbone, "vocab_size": size})
        self.resized_embeddings = True  # tells ParlAI that the optimizer's old state does not fit

    def state_dict(self) -> dict[str, Any]:
        states = super().state_dict()
        weights = {"model": states.pop("model")}
        # some of ParlAI's schedules compute with numpy, whose numbers a checkpoint cannot hold safely
        return {**weights, **plain_numbers(states), CONFIG_KEY: self.ranker.config.to_json()}

    def init_optim(
        self,
        params: Any,
        optim_states: dict[str, Any] | None = None,
        saved_optim_type: str | None = None,
        is_finetune: bool = False,
    ) -> bool:
        groups = parameter_groups(self.ranker, self.opt, single=self.fp16)
        return bool(super().init_optim(groups, optim_states, saved_optim_type, is_finetune=is_finetune))

    def build_lr_scheduler(self, states: dict[str, Any] | None = None, hard_reset: bool = False) -> None:
        optimizer = self.optimizer.optimizer if self.fp16 else self.optimizer
        states = states or {}
        self.scheduler = build_schedule(
            self.opt, optimizer, states, hard_reset=hard_reset, updates=self.planned_updates
        )
        if self.scheduler:
            self._number_training_updates = self.scheduler.get_initial_number_training_updates()
        elif not hard_reset:  # without a schedule ParlAI would count a resumed run's updates from 0
            self._number_training_updates = states.get("number_training_updates", 0)


def _is_in_loop(opt: Opt, path: str) -> bool:
    """Whether this is a training, by what ParlAI's training loop alone sets; in vain where the model's options have it.

    `--datatype train` does not say so: in `parlai eval_model` it is there too, from the model's options.
    """
    file = Path(f"{path}.opt")
    return bool(opt.get("load_from_checkpoint")) and not (
        file.is_file() and read_options(file).get("load_from_checkpoint")
    )
