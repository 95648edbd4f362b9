"""`-m pretrain_ranker`: pre-trains an encoder with masked words and next utterances (Humeau et al., Section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from shlex import quote
from typing import Any

import numpy as np
import parlai.utils.logging as logging
import torch
from parlai.agents.pretrain_ranker.examples import EpisodeExample, ResponseBuffer, ResponseSource, beginning_of
from parlai.agents.pretrain_ranker.flags import UNSUPPORTED, settle_schedule
from parlai.agents.pretrain_ranker.model import PretrainingDictionary, PretrainingFamily
from parlai.agents.pretrain_ranker.report import TrainedWordsReport, example_metrics, main_measures, render_prediction
from parlai.agents.ranker.args import flag_defaults
from parlai.agents.ranker.dialogue.examples import Examples, label_of
from parlai.agents.ranker.dialogue.history import RankerHistory
from parlai.agents.ranker.flags import given_flags
from parlai.agents.ranker.model.agent import RankerModelAgent
from parlai.agents.ranker.model.build_trainer import trainer_of
from parlai.agents.ranker.settings import OTHER_NAMES, flag
from parlai.core.message import Message
from parlai.core.metrics import dict_report
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from parlai.utils.distributed import get_rank, num_workers
from torch import Tensor

from polyencoder.checkpoint import load_weights
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.evaluation.names import in_one_line
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.cross import CrossEncoder
from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.callbacks import PretrainingCurve
from polyencoder.pretraining.card import ranker_options, write_encoder
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.heads import MaskedWords, PretrainingModel
from polyencoder.pretraining.inputs import PairBatch, PairInput, pair_batch
from polyencoder.pretraining.objective import PretrainingObjective
from polyencoder.pretraining.start import Pretrained, masking_of, take_heads
from polyencoder.training.trainer import Trainer

Make = Callable[[PairExample, np.random.Generator], PairInput]

NOT_ON_THE_CARD = ("vocabulary", "backbone", "init_model", "gpu", "no_cuda", "dict_file", "dict_class")
"""Flags that name paths and machines."""
LOOP = ("batchsize", "dynamic_batching", "max_train_steps", "max_train_time", "num_epochs")
"""Flags of ParlAI's loop on the encoder's card, beside the agent's own."""
MASKED_WORDS = "masked_words"  # the key of this head in a model file; the other weights are a cross-encoder


class PretrainRankerAgent(RankerModelAgent):
    """Pre-trains on contexts and labels, in alternating batches of masked words and next utterances."""

    architecture = "cross"
    family = PretrainingFamily()

    @staticmethod
    def dictionary_class() -> type[PretrainingDictionary]:
        return PretrainingDictionary

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._said, self._examined = ResponseBuffer(), ResponseBuffer()
        self._episode: int | None = None
        self._cross: CrossEncoder | None = shared["cross"] if shared else None
        self._validation: dict[str, float] = {}  # main metrics of the last validation
        self._trained_words: TrainedWordsReport | None = None
        if not shared:
            settle_schedule(opt)
        super().__init__(opt, shared)
        self._examples, self._source = Examples(opt, self.global_metrics), ResponseSource("batch", opt)

    def share(self) -> dict[str, Any]:
        return {**super().share(), "cross": self._cross}

    def reset(self) -> None:
        super().reset()
        self._episode = None
        self._examined.clear()

    # ---- the model

    @property
    def ranker(self) -> RankerModel:
        """The encoder and the next-utterance head as a cross-encoder."""
        assert self._cross is not None
        return self._cross

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model as the library pre-trains and saves it."""
        text, device = self.dict.text, next(self.model.parameters()).device
        masking = masking_of(text, self.opt["mask_probability"])
        return Pretrained(self.model, text, device, self.opt["n_positions"], masking)

    @cached_property
    def _inputs(self) -> PairInputs:
        return PairInputs(
            self.dict.text, longest=self.pretrained.longest, masking=self.pretrained.masking, next=self.opt["next"]
        )

    def build_model(self) -> PretrainingModel:
        cross = super().build_model()
        assert isinstance(cross, CrossEncoder)
        cross.requires_grad_(True)
        config = cross.config
        model = PretrainingModel(
            cross.tower, next=self.opt["next"], reduction=config.reduction, normalize=config.normalize
        )
        if self._origin() is None and self.opt.get("backbone"):
            take_heads(model, self.opt["backbone"])
        if model.next_utterance is not None:
            cross.linear = model.next_utterance
        self._cross = cross
        return model

    def load(self, path: str) -> dict[str, Any]:
        states = super().load(path)
        model, head = self.model, states.get(MASKED_WORDS)
        words = self._cross.tower.model.get_input_embeddings().weight
        if len(model.masked_words.bias) != len(words):  # tokens were added
            model.masked_words = MaskedWords(words.size(1), len(words)).to(words)
        if head is not None and len(head["bias"]) == len(words):
            load_weights(model.masked_words, head, origin=path)
        elif not self._is_finetune:
            raise CheckpointError(f"{path}: has no head for masked words: pre-train its encoder with --init-model")
        return states

    def state_dict(self) -> dict[str, Any]:
        states = super().state_dict()
        return {**states, "model": self.ranker.state_dict(), MASKED_WORDS: self.model.masked_words.state_dict()}

    def save(self, path: str | None = None) -> None:
        """Writes a checkpoint and, beside the model file, the encoder's folder for `--backbone`."""
        path = path or self.opt.get("model_file")
        super().save(path)
        if not path or path != self.opt.get("model_file"):
            return
        try:
            self._write_encoder(f"{path}.encoder")
        except CheckpointError as error:
            if not self._run.trains or self._run.has_ended:
                raise
            logging.error(f"{error}. Training continues; {path} itself is written")

    def _write_encoder(self, folder: str) -> None:
        """Writes the folder for `--backbone`: encoder, tokenizer, heads and card."""
        opt, given, report = self.opt, given_flags(self.opt), self._validation
        shown = {*flag_defaults(type(self)), *LOOP} - {*NOT_ON_THE_CARD, *UNSUPPORTED}
        write_encoder(
            self.pretrained,
            folder,
            {"perplexity": report["ppl"], **report} if "ppl" in report else {},
            backbone=opt.get("init_model") if given.get("init_model") else opt.get("backbone"),
            corpus=opt["task"].split(","),
            flags={name: given[name] for name in sorted(given) if name in shown},
            seed=opt.get("seed"),
            updates=self._number_training_updates,
            tokens=self._trained_words.tokens * num_workers() if self._trained_words else 0,
        )

    # ---- observing

    def vectorize(self, obs: Message, history: RankerHistory, **_: Any) -> Message:
        """Adds the turns so far, the response (the label), and the conversation's number."""
        if self._episode is None:
            self._episode = beginning_of(obs)
        if "text" in obs:
            obs.force_set("full_text", history.get_history_str())
            lines = [line for turn in history.turns() for line in turn.split("\n")]
            obs.force_set("turns", [" ".join(line.split()) for line in lines if line.strip()])
            obs.force_set("episode", self._episode)
            try:
                obs.force_set("text_vec", self.dict.text.context_ids(obs["turns"]))
            except InputError:  # an invalid text: `Examples` reports it
                obs.force_set("text_vec", [])
        if obs.get("episode_done"):
            self._episode = None
        label = label_of(obs, self.random)
        if label is not None:
            obs.force_set("label_choice", " ".join(label.split()))
        return obs

    def is_valid(self, obs: Message) -> bool:
        if obs.is_padding() or obs.get("turns") is None:
            return False
        return self._examples.is_usable(obs, self._source)

    def batchify(self, obs_batch: list[Message], sort: bool = False) -> Batch:
        """Makes a batch of the valid examples, as text; the training step masks words."""
        valid = [(place, obs) for place, obs in enumerate(obs_batch) if self.is_valid(obs)]
        return Batch(
            batchsize=len(valid),
            is_training=any("labels" in obs for obs in obs_batch),
            valid_indices=torch.tensor([place for place, _ in valid], dtype=torch.long),
            examples=[EpisodeExample(obs["turns"], obs["label_choice"], episode=obs["episode"]) for _, obs in valid],
        )

    # ---- training

    def build_trainer(self, restored: dict[str, Any] | None) -> Trainer:
        self._trained_words = TrainedWordsReport(self)
        callbacks = [self._trained_words, self._said]
        objective = PretrainingObjective(self.model)
        return trainer_of(
            self,
            self.pretrained,
            callbacks,
            config=self._training,
            objective=objective,
            run=self._run,
            restored=restored,
            curve=PretrainingCurve,
        )

    def train_step(self, batch: Batch) -> Output | None:
        """Makes one step of the library's trainer; objectives alternate."""
        if not self.begin_batch(is_empty=not batch.examples):
            return None
        assert self.trainer is not None
        number = self.trainer.progress.batches
        draws = SeededRandom(f"{self.opt.get('seed')}:{get_rank()}:{number}")
        self._said.add(batch.examples, draws)
        pairs = [self._said.pair(one, draws) for one in batch.examples]
        make = self._inputs.masked if number % 2 == 0 else self._inputs.next
        self.trainer.step(self._batch_of(pairs, make) if pairs else None)
        return None

    def _batch_of(self, pairs: list[PairExample], make: Make) -> PairBatch:
        self._inputs.remember(pairs)
        inputs = [make(pair, np.random.default_rng(pair.key)) for pair in pairs]
        return pair_batch(inputs, pad_id=self.dict.text.pad_id)

    def receive_metrics(self, metrics_dict: dict[str, Any]) -> None:
        super().receive_metrics(metrics_dict)
        self._validation = main_measures(dict_report(metrics_dict))

    def summary(self, report: dict[str, Any]) -> str:
        return in_one_line(main_measures(report), form=".3g")

    def what_next(self) -> list[str]:
        path, options = f"{self.opt.get('model_file')}.encoder", ranker_options(self.pretrained)
        agent = "biencoder" if options.pop("architecture", None) else "polyencoder"
        flags = [f"{flag(OTHER_NAMES.get(name, name))} {str(value).lower()}" for name, value in options.items()]
        words = [f"-m {agent}", f"--backbone {quote(path)}", *flags]
        return [f"make a ranker of it: parlai train_model {' '.join(words)} -t TASK -mf FILE"]

    # ---- evaluation

    def eval_step(self, batch: Batch) -> Output | None:
        """Evaluates both objectives on each example, deterministically."""
        if not batch.examples:
            return None
        keys = [SeededRandom(f"{one.episode}:{len(one.turns)}:{one.label}") for one in batch.examples]
        self._examined.add(batch.examples, keys[0])
        pairs = [self._examined.pair(one, draws) for one, draws in zip(batch.examples, keys, strict=True)]
        self.model.eval()
        objective, device = PretrainingObjective(self.model), self.pretrained.device
        masked, following = (
            self._batch_of(pairs, make).to(device) for make in (self._inputs.masked, self._inputs.next)
        )
        with self.autocast():
            found = objective.losses(following)[1:] if following.has_choice else None
            metrics = example_metrics(masked, objective.losses(masked)[1:], found)
            # otherwise ParlAI would compare predictions with the labels
        shows = "display_add_fields" in self.opt or bool(self.opt.get("display_examples"))
        said = [render_prediction(self.pretrained, self._inputs, pair) for pair in pairs] if shows else None
        return Output(said, metrics=metrics)

    def score_candidates(self, batch: Batch, cand_vecs: Tensor, cand_encs: Tensor | None = None) -> Tensor:
        raise ConfigError("pre-training ranks no candidates: make a ranker of the encoder (--backbone)")
