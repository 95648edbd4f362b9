"""`RankerModelAgent`, the model half of our agents: building, loading and saving it, and its `Trainer`."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from random import Random
from shlex import quote
from typing import Any, ClassVar

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.args import collect_flag_defaults, fill_in_defaults
from parlai.agents.ranker.console import explain_errors, show_library_log
from parlai.agents.ranker.dialogue.history import EPOCH_EXAMPLES, RankerHistory
from parlai.agents.ranker.dialogue.sources import Source
from parlai.agents.ranker.dictionary import RankerDictionary, is_for_show
from parlai.agents.ranker.flags import CheckpointSource, LoadedModel, check_special_tokens, select_explicit_flags
from parlai.agents.ranker.model.build_trainer import build_trainer, build_training_config
from parlai.agents.ranker.model.checkpoints import Saving, get_adapters_state, restore_adapters
from parlai.agents.ranker.model.family import ModelFamily, describe_parlai_model, get_fine_tuned_part
from parlai.agents.ranker.model.loop import TrainLoopState, get_checkpoint_path, settle_datatype
from parlai.agents.ranker.model.optimization import UNTIL_THE_END, check_precision, read_goal
from parlai.agents.ranker.options import check_option_files
from parlai.agents.ranker.settings import check_read
from parlai.core.message import Message
from parlai.core.metrics import GlobalAverageMetric, Metric, dict_report
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch
from parlai.core.torch_ranker_agent import TorchRankerAgent
from parlai.utils.distributed import is_distributed, is_primary_worker

from polyencoder.checkpoint import CONFIG_KEY, load_weights
from polyencoder.config import Architecture, RankerConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.evaluation.names import format_summary, select_main_measures
from polyencoder.export.metadata import parse_hub_id
from polyencoder.importing import is_parlai_model, read_ranker_file
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.build import build_model
from polyencoder.modeling.cpu.products import limit_shape_cache
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.pretrained_heads import start_from_heads
from polyencoder.modeling.sentence_encoder import start_from_dense
from polyencoder.modeling.trainable import compile_encoders, freeze
from polyencoder.modeling.transfer import transfer_weights
from polyencoder.ranker import Ranker
from polyencoder.settings.training import TrainingConfig
from polyencoder.storage.safe_load import to_plain_numbers
from polyencoder.training.building import make_updates
from polyencoder.training.distributed import gather_objects
from polyencoder.training.precision import Precision
from polyencoder.training.trainer import Trainer
from polyencoder.training.updates import OptimizerUpdates

TRAINING_KEY = "training"  # the key of a run's state in a checkpoint


class RankerModelAgent(TorchRankerAgent):
    """ParlAI's ranker agent around a model of the library and, in training, the library's `Trainer`."""

    architecture: ClassVar[Architecture]
    family: ClassVar[ModelFamily] = ModelFamily()
    trainer: Trainer | None = None
    updates: OptimizerUpdates
    """Set in training agents."""
    fp16 = property(lambda self: False, lambda self, _: None)
    """Disables ParlAI's own half precision; the library's replaces it."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        explain_errors(parser)
        check_option_files(partial_opt)
        cls.family.add_args(parser, cls.architecture, partial_opt)
        return parser

    @staticmethod
    def dictionary_class() -> type[RankerDictionary]:
        return RankerDictionary

    def build_history(self) -> RankerHistory:
        """Builds a history of as many turns as the model reads, which `--init-model` may say."""
        self.histsz = self.dict.text.config.history_size
        return super().build_history()

    @classmethod
    def history_class(cls) -> type[RankerHistory]:
        return RankerHistory

    def __new__(cls, opt: Opt, shared: dict[str, Any] | None = None) -> RankerModelAgent:
        """Sets missing options to their defaults, for agents made in Python, before any `__init__` reads them."""
        if not shared:
            fill_in_defaults(cls, opt)
            limit_shape_cache()
        return super().__new__(cls)

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if not shared and opt.get("model_file") and is_parlai_model(opt["model_file"]):
            describe_parlai_model(opt)
        if not shared:
            settle_datatype(opt)
            self.family.check_flags(opt, self.architecture)
            check_read(opt, TrainingConfig, defaults=collect_flag_defaults(type(self)))
        self._training: TrainingConfig = shared["training"] if shared else build_training_config(opt)
        show_library_log()
        self._checkpoint: tuple[RankerConfig, dict[str, Any]] | None = None
        self._is_finetune = False
        self.output_scaling_pending = False
        self._run = TrainLoopState(opt, shared=bool(shared))
        if not shared:
            self._run.prepare(self.settle_candidates(opt))
        self._saving = Saving(opt.get("model_file"))
        self._restored: dict[str, Any] | None = None  # until the first batch
        self._epochs: dict[str, int] = {}  # examples in an epoch of each task, once known
        super().__init__(opt, shared)
        if self._run.is_in_loop:
            gather_objects(None)  # a barrier: the first process restores the counters
        # gradients of several processes are summed without DistributedDataParallel
        self.model = getattr(self.model, "module", self.model)
        if opt.get("seed") is not None:
            self.random = Random(opt["seed"])
        if not shared:
            check_precision(self.opt, use_cuda=self.use_cuda)
        if not shared and self._should_initialize_optimizer():
            self.trainer = build_trainer(self, self._training, run=self._run, restored=self._restored)
            self._number_training_updates = self.updates.count

    def settle_candidates(self, opt: Opt) -> Source | None:
        """Sets the candidates' sources in the options; returns that of evaluations, None without candidates."""
        return None

    @property
    def ranker(self) -> RankerModel:
        """The model without distributed training's wrapper."""
        return getattr(self.model, "module", self.model)

    def build_ranker(self) -> Ranker:
        """The current model as the library's `Ranker`."""
        ranker = Ranker(self.ranker, self.dict.text, device=next(self.ranker.parameters()).device)
        ranker.source = Path(self.opt["model_file"]) if self.opt.get("model_file") else None
        return ranker

    def build_dictionary(self) -> RankerDictionary:
        self.family.check_origin(self.opt, self.architecture, self._get_origin())
        dictionary: RankerDictionary = super().build_dictionary()
        check_special_tokens(self.opt, dictionary.get_special_tokens_opt())
        self.opt.update(dictionary.get_special_tokens_opt())
        return dictionary

    def _get_init_model(self, opt: Opt, shared: dict[str, Any] | None) -> tuple[str | None, bool]:
        is_resumed = opt.get("init_model") == get_checkpoint_path(opt) and not self._run.evaluates_the_best
        if opt.get("load_from_checkpoint") and not is_resumed:
            # else ParlAI would load it instead of the best model, or resume the run of another model's checkpoint
            opt["load_from_checkpoint"] = False
        return super()._get_init_model(opt, shared)

    def _get_origin(self) -> CheckpointSource | None:
        """The source of the loaded weights, if any."""
        path, is_finetune = self._get_init_model(self.opt, None)
        return CheckpointSource(path, is_finetune) if path else None

    def build_model(self) -> RankerModel:
        """Builds a model of the checkpoint's shape if one will be loaded, else a new one."""
        if is_distributed() and not self.use_cuda:
            self.model_parallel = True  # else ParlAI passes a GPU to DistributedDataParallel, even without one
        opt, origin, start = self.opt, self._get_origin(), None
        if origin is not None:
            self._is_finetune = origin.is_finetune
            if not self._is_finetune and self._run.is_in_loop:
                self.refuse_to_overwrite()
            self._checkpoint = read_ranker_file(origin.path)
            start = LoadedModel(self._checkpoint[0], origin)
        is_new = start is None or self._is_finetune
        self.output_scaling_pending = is_new and opt.get("output_scaling") == "auto"
        if start is None and not opt.get("backbone") and self._training.lora.rank is not None:
            raise ConfigError(f"--lora {opt['lora']}: adapts a trained encoder: give --backbone or --init-model")
        config, pretrained = self.family.configure(opt, self.architecture, self.dict.text, start)
        model = build_model(config, pretrained)
        if pretrained is not None:
            # for its card; here, where a relative path can be looked for
            opt["base_model"] = parse_hub_id(opt["backbone"])
            start_from_heads(model, opt["backbone"])
            start_from_dense(model, opt["backbone"])
        freezes = bool(opt.get("freeze_candidates"))
        if freezes and self.output_scaling_pending:
            raise ConfigError(
                "--output-scaling auto changes the vectors of candidates, which --freeze-candidates keeps: set a number"
            )
        freeze(model, fine_tuned=get_fine_tuned_part(opt), freeze_candidates=freezes)
        if opt.get("compile") and self._should_initialize_optimizer():
            compile_encoders(model, device="cuda" if self.use_cuda else "cpu")
        return model

    def handle_measured_scaling(self, _: float) -> None:
        """Called after `--output-scaling auto` was measured on the first batch."""
        self.output_scaling_pending = False
        self.family.describe_in_opt(self.opt, self.ranker.config)

    @cached_property
    def precision(self) -> Precision:
        return Precision(self._training.precision, torch.device("cuda" if self.use_cuda else "cpu"))

    def autocast(self) -> torch.autocast:
        return self.precision.autocast()

    def share(self) -> dict[str, Any]:
        return {**super().share(), "training": self._training}

    # ---- files

    def refuse_to_overwrite(self) -> None:
        """Raises CheckpointError if training would overwrite a model of ParlAI's own agents."""
        path = self.opt.get("model_file")
        if path and is_parlai_model(path):
            raise CheckpointError(
                f"--model-file {path} is ParlAI's own model, which training would overwrite: give a new --model-file, "
                f"and start from this one with --init-model {path}"
            )

    def load(self, path: str) -> dict[str, Any]:
        """Loads a checkpoint's weights without running code from it; returns all its states."""
        _, states = self._checkpoint or read_ranker_file(path)
        self._checkpoint = None
        if self._is_finetune:
            fresh = transfer_weights(self.ranker, states["model"], origin=path)
            logging.info(f"starting from {path}" + (f"; random at first: {', '.join(fresh)}" if fresh else ""))
            config = self.ranker.config
            self.ranker.continue_with(select_explicit_flags(self.opt), origin=path)
            if self.ranker.config != config:
                self.family.describe_in_opt(self.opt, self.ranker.config)
        else:
            load_weights(self.ranker, states["model"], origin=path)
        if not self._should_initialize_optimizer():
            self.ranker.prepare_for_inference()
        if self.ranker.grow_vocabulary(len(self.dict.text)):
            self.resized_embeddings = True  # tells ParlAI that the optimizer's old state does not fit
        is_whole = "number_training_updates" in states  # not after ParlAI's vacuum script
        if is_whole and self._run.trains and not self._is_finetune and (state := states.get(TRAINING_KEY)):
            self._restored = state
            self._run.load_state(path, state, updates=states["number_training_updates"])
            self._saving.unwritten = state["unwritten"]
        return states

    def state_dict(self) -> dict[str, Any]:
        states, is_adapted = super().state_dict(), self.ranker.is_adapted
        weights = {"model": states.pop("model")}
        if is_adapted:
            weights = {"model": self.ranker.merge_adapters().state_dict()}
        # some of ParlAI's schedules return numpy numbers, which safe loading does not accept
        states = {**weights, **to_plain_numbers(states), CONFIG_KEY: self.ranker.config.to_json()}
        if self.trainer is not None:
            run = self.trainer.run_state()
            del run["updates"]["optimizer"]  # ParlAI stores it
            states[TRAINING_KEY] = {**self._run.get_state(self.random), "unwritten": self._saving.unwritten, **run}
            if is_adapted:
                states[TRAINING_KEY] |= get_adapters_state(self.ranker, self._training.lora)
        return states

    def save(self, path: str | None = None) -> None:
        """Writes a checkpoint atomically. If it cannot be written, training continues."""
        path, run = path or self.opt.get("model_file"), self._run
        if not path:
            return
        if path == self.opt.get("model_file") and not run.is_in_loop:
            self.refuse_to_overwrite()
        check_finite(self.model.named_parameters(), origin=f"{path} is not written")
        continues = run.trains and not run.has_ended
        self._saving.write(
            path, self.state_dict, opt=self.opt, dictionary=self.dict, in_loop=run.is_in_loop, continues=continues
        )

    def shutdown(self) -> None:
        super().shutdown()
        run, self._run.has_ended = self._run, True
        if self.trainer is not None and run.is_in_loop:
            if sys.exc_info()[0] is None:
                self.trainer.check_has_trained()
            self.trainer.end()
        self._saving.check_best_is_written()
        run.log_result(self.suggest_next_step())

    def suggest_next_step(self) -> list[str]:
        """Next steps with the model, one line each with its command."""
        path, data = quote(str(self.opt.get("model_file"))), select_explicit_flags(self.opt).get("datapath")
        where = f" --datapath {quote(data)}" if data else ""  # the replies are the task's, read there
        return [
            f"talk to it: parlai interactive -mf {path}{where}",
            f"use it without ParlAI: polyencoder export {path} FOLDER",
        ]

    # ---- training

    def batch_act(self, observations: list[Message] | Batch) -> list[Message]:
        if self.trainer is not None and isinstance(observations, list):
            counts = {obs["id"]: obs[EPOCH_EXAMPLES] for obs in observations if EPOCH_EXAMPLES in obs}
            self._epochs |= counts
            if counts and len(self._epochs) == len(self.opt["task"].split(",")):
                self.trainer.goal = read_goal(self.opt, epoch=sum(self._epochs.values()))
        return super().batch_act(observations)

    def begin_batch(self, *, is_empty: bool) -> bool:
        """Prepares a training batch; False to skip it: after a resumed run's last update, or if no process has an
        example."""
        if self._restored is not None:
            self._run.resume(self._restored, self.random)
            self._restored = None
            if self._run.is_over(self._number_training_updates):
                return False
        if is_empty and not is_distributed():
            return False
        assert self.trainer is not None
        if self.trainer.progress.batches == 0:
            self.refuse_to_overwrite()
        return True

    def receive_metrics(self, metrics_dict: dict[str, Any]) -> None:
        """Handles a validation's metrics: the schedule, the log, and the trainer's callbacks."""
        updates = self._number_training_updates
        self._run.check_validation(metrics_dict, updates=updates)
        super().receive_metrics(metrics_dict)
        report = dict_report(metrics_dict)
        if self.trainer is not None:
            self.trainer.evaluated(report)
        if is_primary_worker():
            logging.info(f"validation after {updates:,} updates: {format_summary(select_main_measures(report))}")

    # ---- updates

    def init_optim(
        self,
        params: Any,
        optim_states: dict[str, Any] | None = None,
        saved_optim_type: str | None = None,
        is_finetune: bool = False,
    ) -> bool:
        """Builds the library's updates, whose optimizer ParlAI saves; returns whether a saved state is left out."""
        if self._training.lora.rank is not None and not self.ranker.is_adapted:
            self.ranker.add_adapters(**self._training.lora.options)
        if self._restored is not None:
            restore_adapters(self.ranker, self._training.lora, self._restored, path=str(self.opt.get("model_file")))
        goal = read_goal(self.opt, epoch=None)
        schedule, total = self._training.schedule, self._run.planned_updates or goal.updates
        if is_for_show(self.opt):
            total = 1  # never made
        elif schedule.name not in UNTIL_THE_END and schedule.warmup_updates is not None:
            total = None  # such a warm-up may be longer than the run
        self.updates = make_updates(
            self.ranker, self._training, precision=self.precision, total=total, by_time=goal.seconds is not None
        )
        self.optimizer = self.updates.optimizer
        if self._restored is None:
            return is_finetune
        fresh, reason = self.updates.state_dict(), None
        updates = {**self._restored["updates"], "optimizer": fresh["optimizer"]}
        if getattr(self, "resized_embeddings", False):
            reason = "tokens were added"
        elif saved_optim_type != self.opt["optimizer"]:
            updates, reason = fresh, f"it is that of {saved_optim_type}"
        else:
            try:
                self.optimizer.load_state_dict(optim_states or {})
                updates["optimizer"] = self.optimizer.state_dict()
            except (ValueError, KeyError):
                updates, reason = fresh, "other parameters are trained"
        if reason is not None:
            logging.warning(f"the optimizer begins anew, without its saved state: {reason}")
        self._restored = {**self._restored, "updates": updates}
        return updates is fresh

    def build_lr_scheduler(self, states: dict[str, Any] | None = None, hard_reset: bool = False) -> None:
        """None: `init_optim` has built the library's."""
        self.scheduler = None

    def report(self) -> dict[str, Metric]:
        report: dict[str, Metric] = super().report()
        if self.trainer is not None:
            report["lr"] = GlobalAverageMetric(self.updates.learning_rate)
        return report
