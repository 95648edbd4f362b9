"""The keyword baseline of the ConveRT paper: ranks candidates by the cosine of TF-IDF vectors.

`parlai eval_model -m tfidf -t TASK` fits the weights to the labels of the task's training data; `parlai train_model
-m tfidf -t TASK -mf FILE` saves them for other commands.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.args import add_answering_args, fill_in_defaults
from parlai.agents.ranker.console import explain_errors, hide_options
from parlai.agents.ranker.dialogue.choice import check_sources, source_of
from parlai.agents.ranker.dialogue.examples import Examples, label_of
from parlai.agents.ranker.dialogue.fixed import training_labels
from parlai.agents.ranker.dialogue.history import RankerHistory
from parlai.agents.ranker.options import check_option_files
from parlai.agents.ranker.settings import flag
from parlai.core.agents import Agent
from parlai.core.message import Message
from parlai.core.metrics import Metric, Metrics
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch
from torch import Tensor

from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.evaluation.tfidf import Tfidf


class NoDictionary:
    """A no-op dictionary, so that `train_model` does not build one."""

    def __init__(self, opt: Opt) -> None:
        pass

    def is_prebuilt(self) -> bool:
        return True


class TfidfAgent(Agent):
    """Ranks candidates by the words they share with the context; rare words count more."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        explain_errors(parser)
        hide_options()
        check_option_files(partial_opt)
        _add_args(parser)
        return parser

    @staticmethod
    def dictionary_class() -> type[NoDictionary]:
        return NoDictionary

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if not shared:
            fill_in_defaults(type(self), opt)
        super().__init__(opt, shared)
        _check_numbers(self.opt)
        self.id = "Tfidf"
        self.random = random.Random(42)
        self.history = RankerHistory(self.opt)
        if not shared:
            check_sources(self.opt, in_loop=False)  # batches train nothing
        self.global_metrics = Metrics(shared=shared and shared["metrics"])
        if shared:
            self.tfidf, self.source = shared["tfidf"], shared["source"]
        else:
            name = "fixed" if self.opt.get("interactive_mode") else self.opt["eval_candidates"]
            self.source = source_of(name, self.opt)
            self.tfidf = _fitted(self.opt)
        self._examples = Examples(self.opt, self.global_metrics)

    def share(self) -> dict[str, Any]:
        own = {"tfidf": self.tfidf, "source": self.source, "metrics": self.global_metrics.share()}
        return super().share() | own

    def save(self, path: str | None = None) -> None:
        path = path or self.opt.get("model_file")
        if path:
            self.tfidf.save(path)
            # ParlAI warns about a missing dictionary file; the model file has the words
            Opt({**self.opt, "dict_file": path}).save(f"{path}.opt")

    def reset(self) -> None:
        super().reset()
        self.history.reset()

    def report(self) -> dict[str, Metric]:
        return self.global_metrics.report()

    def reset_metrics(self) -> None:
        self.global_metrics.clear()

    # ---- observing

    def observe(self, observation: Message) -> Message:
        """Adds the turn to the history, and the dialogue so far and the label to the message."""
        obs = self.observation = Message(observation)
        self.history.update_history(obs)
        if obs.get("text") is not None:
            obs.force_set("full_text", self.history.get_history_str())
        label = label_of(obs, self.random, among=self.source.among)
        if label is not None:
            obs.force_set("label_choice", label)
        return obs

    def self_observe(self, self_message: Message) -> None:
        """Adds the reply to the history: the label if there is one, as in training, else the agent's answer."""
        obs = self.observation
        if obs is None or obs.get("episode_done"):
            self.reset()
            return
        said = obs.get("label_choice", self_message.get("text"))
        if said is not None:
            self.history.add_reply(said)

    # ---- answering

    def act(self) -> Message:
        reply = self.batch_act([self.observation])[0]
        self.self_observe(reply)
        return reply

    def batch_act(self, observations: Sequence[Message]) -> list[Message]:
        """Ranks candidates and computes metrics for each example; no-op in training."""
        replies = [Message({"id": self.getID(), "episode_done": False}) for _ in observations]
        if any("labels" in obs for obs in observations):
            return replies
        examples = {place: obs for place, obs in enumerate(observations) if self._is_valid(obs)}
        if examples:
            answers = self._answers(list(examples.values()))
            for place, answer in zip(examples, answers, strict=True):
                replies[place].update(answer)
        return replies

    def _is_valid(self, obs: Message) -> bool:
        if obs.is_padding() or obs.get("full_text") is None:
            return False
        # `Examples` counts tokens, and a start and an end are always among them
        obs.force_set("text_vec", ["<start>", *obs["full_text"].split(), "<end>"])
        return self._examples.is_usable(obs, self.source)

    def _answers(self, examples: list[Message]) -> list[dict[str, Any]]:
        labels = [obs.get("label_choice") for obs in examples]
        has_labels = None not in labels
        batch = Batch(
            labels=labels if has_labels else None,
            candidates=[self.source.own(obs) for obs in examples],
            right=[self.source.right(obs) for obs in examples] if has_labels else None,
            contexts=[self._context(obs) for obs in examples],
        )
        ranked = self.source.ranked(batch, self._scores, most=self.opt["cap_num_predictions"])
        self._examples.check_exam(batch.labels, self.source.name, is_ranked=ranked is not None)
        if ranked is None:
            return [{} for _ in examples]
        answers: list[dict[str, Any]] = []
        for found in ranked.found:
            answers.append({"text": found[0][0], "text_candidates": [text for text, _ in found]})
            if self.opt["return_cand_scores"]:
                answers[-1]["sorted_scores"] = [score for _, score in found]
        for answer, metrics in zip(answers, ranked.metrics or (), strict=False):
            answer["metrics"] = metrics
        return answers

    def _context(self, obs: Message) -> str:
        """The whole context, or its last line, which is the utterance after a persona."""
        text: str = obs["full_text"]
        if self.opt["tfidf_context"] == "all":
            return text
        return next((line for line in reversed(text.split("\n")) if line.strip()), "")

    def _scores(self, batch: Batch, pool: CandidatePool) -> Tensor:
        """Cosines [batch, n] of each example's candidates; undefined at padding."""
        scores = torch.from_numpy(self.tfidf.cosines(batch.contexts, pool.texts))
        return scores if pool.index is None else scores.gather(1, pool.index.clamp(min=0))


def _check_numbers(opt: Opt) -> None:
    for name in ("tfidf_ngrams", "tfidf_max_examples", "cap_num_predictions"):
        if opt[name] < 1:
            raise ConfigError(f"{flag(name)} {opt[name]}: give a whole number from 1 up")


def _fitted(opt: Opt) -> Tfidf:
    """Reads the weights from an existing model file, else fits them to the labels of the task's training data.

    ConfigError if there is neither a file nor a task.
    """
    path = opt.get("model_file")
    if path and os.path.exists(path):
        tfidf, origin = Tfidf.read(path), f"read from {path}"
        wanted = (opt.get("override") or {}).get("tfidf_ngrams", tfidf.ngrams)
        if wanted != tfidf.ngrams:
            raise ConfigError(f"--tfidf-ngrams {wanted}: {path} was made with {tfidf.ngrams}; give another -mf")
    else:
        if opt.get("task") in (None, "", "interactive"):
            raise ConfigError("tfidf has no task to fit to: give -mf a file that `parlai train_model -m tfidf` wrote")
        responses = islice(training_labels(opt), opt["tfidf_max_examples"])
        tfidf, origin = Tfidf.fit(responses, ngrams=opt["tfidf_ngrams"], task=opt.get("task")), "just fitted"
    logging.info(
        f"tfidf: weights of {len(tfidf.terms):,} terms in {tfidf.responses:,} responses of {tfidf.task}, {origin}"
    )
    return tfidf


def _add_args(parser: ParlaiParser) -> None:
    """Adds the flags shared with other rankers, and three of its own."""
    group = parser.add_argument_group("TF-IDF arguments")
    group.add_argument(
        "--tfidf-context",
        type=str,
        default="last",
        choices=["last", "all"],
        help="What is compared with the candidates: the last line, or the whole context with the persona.",
    )
    group.add_argument("--tfidf-ngrams", type=int, default=1, help="Also count sequences of up to this many words.")
    group.add_argument(
        "--tfidf-max-examples",
        type=int,
        default=1_000_000,
        help="Fit word weights to this many labels, the first of the training data.",
    )
    group.add_argument(
        "-ecands",
        "--eval-candidates",
        type=str,
        default="inline",
        choices=["batch", "inline", "fixed", "batch-all-cands"],
        help="The source of candidates; in interactive mode it is fixed.",
    )
    group.add_argument(
        "-fcp", "--fixed-candidates-path", type=str, default=None, help="A file of fixed candidates, one a line."
    )
    group.add_argument(
        "--ignore-bad-candidates",
        type="bool",
        default=False,
        help="Skip and count examples without candidates, or whose label is not among them, instead of an error.",
    )
    add_answering_args(parser)
    group.add_argument(
        "--cap-num-predictions", type=int, default=100, help="How many of the best candidates an answer lists."
    )
    group.add_argument("--return-cand-scores", type="bool", default=False, help="List their scores, too.")
    # The weights are fitted before the first step. The teacher need not look for candidates.
    parser.set_defaults(max_train_steps=1, candidates="batch")
