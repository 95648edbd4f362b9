"""Base class of the `-t selection:...` teachers: in memory or streamed, cheap metrics, candidates on demand."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from parlai.agents.ranker.console import explain_errors
from parlai.agents.ranker.dialogue.examples import GRADES
from parlai.agents.ranker.dialogue.history import EPOCH_EXAMPLES, MESSAGE_TURNS
from parlai.agents.ranker.options import check_option_files
from parlai.core.message import Message
from parlai.core.metrics import AverageMetric, Metric
from parlai.core.mutators import MUTATOR_REGISTRY, setup_mutator_registry
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.teachers import FixedDialogTeacher
from parlai.tasks.selection.epochs import Episode, Epochs, Messages
from parlai.tasks.selection.metrics import RankingMetrics
from parlai.utils import logging
from parlai.utils.data import DatatypeHelper
from parlai.utils.distributed import get_rank, num_workers

from polyencoder.data.collator import OWN_CANDIDATES
from polyencoder.data.epochs import Counts, InMemory, Reader, Source, Streamed, estimate_counts
from polyencoder.data.example import Example
from polyencoder.data.negatives import SAMPLED_FROM, NegativeSampler
from polyencoder.data.readers import BadExamples, DataFile, OnBad
from polyencoder.data.seeded_random import SeededRandom
from polyencoder.errors import ConfigError, InputError, suggest_similar

CHOICES = "choices"
"""The field of a message that holds its own candidates until it is sent."""


class SelectionTeacher(FixedDialogTeacher):
    """A teacher of a task: subclasses list the files of a split (`files`) and read one (`read`).

    `-dt train` keeps the episodes in memory, `-dt train:stream` reads them when needed. Both shuffle each epoch, give
    every reader its share and resume an interrupted training. ParlAI samples with replacement instead.

    `label_candidates` of a message are its own, or sampled ones if there is a `sampler` and the agent's
    `--candidates` (training) or `--eval-candidates` asks for inline candidates. An agent that trains with
    `--candidates batch` or `fixed` gets none, and does not pay for them.
    """

    data_loader = None  # ParlAI would start a thread for it
    num_negatives = 19
    """The task's default of `--num-negatives`."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        explain_errors(parser)
        check_option_files(partial_opt)  # ParlAI calls this before it reads a model's options
        _check_mutators((partial_opt or {}).get("mutators"))
        super().add_cmdline_args(parser, partial_opt)
        group = parser.add_argument_group("Selection tasks")
        group.add_argument(
            "--shuffle-buffer",
            type=int,
            default=4096,
            help="Episodes in the shuffle buffer of a stream (-dt train:stream), and in that of the episodes that "
            "--mutators make from different dialogues in training.",
        )
        group.add_argument(
            "--skip-bad-examples",
            type="bool",
            default=False,
            help="Skip and count records that cannot be read or used, instead of stopping at them.",
        )
        parser.add_argument_group("Sampled candidates").add_argument(
            "--num-negatives",
            type=int,
            default=None,
            help="With inline candidates, for data that has none: how many random training labels to sample as "
            "negatives. They depend on --teacher_seed. Default: 19, for DSTC7 and Ubuntu the paper's 15.",
        )
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if opt.get("metrics", "default") == "default":  # with --metrics they are ParlAI's
            self.metrics = RankingMetrics("default", shared=shared and shared["metrics"])
        super().__init__(opt, shared)
        source = opt.get("candidates" if self.training else "eval_candidates")
        searches = bool(opt.get("index")) and not self.training
        self.wants_candidates = source in OWN_CANDIDATES and not searches
        self.gives_candidates = not self.training or source is None or self.wants_candidates
        self._queue: deque[Message] = deque()
        self._tells_epoch = self.training and "num_epochs" in opt  # a training script
        if shared:
            self.source, self.epochs = shared["source"], shared["epochs"]
            self.sampler, self.bad, self.left_out = shared["sampler"], shared["bad"], shared["left_out"]
        else:
            self.bad = BadExamples(skip=bool(opt.get("skip_bad_examples")))
            self.left_out = BadExamples(skip=True)  # valid records that are no examples of this task
            self.source = self.open_source(DatatypeHelper.fold(self.datatype))
            self.sampler = self._open_sampler(DatatypeHelper.fold(self.datatype))
            self.epochs = self._open_epochs()
        self.reset()

    def share(self) -> dict[str, Any]:
        shared = {"source": self.source, "epochs": self.epochs, "sampler": self.sampler, "bad": self.bad}
        return super().share() | shared | {"left_out": self.left_out}

    # ---- defined by a task

    def files(self, split: str) -> Sequence[str]:
        """The files of "train", "valid" or "test", downloaded if necessary."""
        raise NotImplementedError

    def read(self, file: str | DataFile, bad: OnBad) -> Iterator[Episode]:
        """The episodes of a file. `bad` gets the error of a bad record; it raises, or returns to continue."""
        raise NotImplementedError

    def draw(self, episode: Episode, rng: SeededRandom) -> Episode:
        """This epoch's version of a stored episode, for tasks that choose a part at random."""
        return episode

    def estimate(self, files: Sequence[str]) -> Counts:
        """An estimate of the size of a stream's files."""
        return estimate_counts(lambda file: self.read(file, BadExamples(skip=True)), files)

    # ---- common to all tasks

    def augments(self, split: str) -> bool:
        """For tasks with a variant `plain`: whether each turn of a dialogue becomes a label, as in training without it.

        Raises ConfigError for another variant.
        """
        parts = self.opt["task"].split(":")  # a user's own task may have one part
        task, variant = ":".join(parts[:2]), parts[2:]
        if variant not in ([], ["plain"]):
            raise ConfigError(f"-t {self.opt['task']}: unknown variant; use {task} or {task}:plain")
        return split == "train" and not variant

    def _compose(self, episode: Episode, rng: SeededRandom) -> Messages:
        """The messages of an episode, which mutators may split into several episodes."""
        drawn = self.draw(episode, rng)
        messages = [_build_message(example, is_last=example is drawn[-1]) for example in drawn]
        for mutator in self.mutators:
            messages = list(mutator(messages))
        return messages

    def open_source(self, split: str) -> Source[Episode]:
        """Opens the episodes of a split, and reads them if they are kept in memory."""
        files = self.files(split)
        if DatatypeHelper.is_streaming(self.datatype):
            source: Source[Episode] = Streamed(
                self._read, files, buffer=self._buffer, estimate=lambda: self.estimate(files)
            )
        else:
            source = InMemory((episode for file in files for episode in self._read(file)), size=len)
            if self.bad.count:
                logging.warning(self.bad.summarize())
            if self.left_out.count:
                logging.info(f"{self.left_out.count:,} records were left out; the first: {self.left_out.first}")
        if next(source.iter_items(), None) is None:
            raise InputError(f"{', '.join(files)}: holds no example for -t {self.opt['task']} -dt {self.datatype}")
        return source

    def _open_sampler(self, split: str) -> NegativeSampler | None:
        """Opens the sampler of candidates for examples that have none, if the agent uses inline candidates."""
        if not self.wants_candidates:
            return None
        count = self.num_negatives if (explicit := self.opt.get("num_negatives")) is None else explicit
        seed = self._seed if self.training else self._task_seed
        source = f"the training data of {self.opt['task']}"
        sampler = NegativeSampler(self._read_training_labels(split), count=count, seed=seed, source=source)
        first = next(self.source.iter_items())
        if self.draw(first, SeededRandom("first"))[0].candidates is None:
            _ = sampler.pool  # read now, so that a missing file is reported before the first example
        elif "num_negatives" in (self.opt.get("override") or {}):
            logging.warning(
                f"--num-negatives: the {split} data of {self.opt['task']} has candidates; negatives are only sampled "
                "for examples without any"
            )
        return sampler

    def _read_training_labels(self, split: str) -> Iterator[str]:
        """The labels that negatives are sampled from; the first ones of a stream."""
        if split == "train":
            episodes = self.source.iter_items()
        else:
            episodes = (episode for file in self.files("train") for episode in self._read(file))
        rng = SeededRandom("labels")
        labels = (text for episode in episodes for example in self.draw(episode, rng) for text in example.right)
        yield from islice(labels, SAMPLED_FROM if DatatypeHelper.is_streaming(self.datatype) else None)

    def num_episodes(self) -> int:
        return self.source.count_items()[0]

    def num_examples(self) -> int:
        """The number of examples in an epoch; an estimate for a stream."""
        return self.source.count_items()[1]

    def reset(self) -> None:
        super().reset()
        self._queue.clear()
        self.epochs.restart()

    def next_example(self) -> tuple[Message, bool]:
        while not self._queue:
            episode = self.epochs.take()
            if episode is None:
                return Message.padding_example(), True
            self._queue.extend(episode)
        message = self._queue.popleft()
        if self._tells_epoch:
            message[EPOCH_EXAMPLES], self._tells_epoch = self.num_examples(), False
        self._give_candidates(message)
        return message, not self._queue and self.epochs.over

    def report(self) -> dict[str, Metric]:
        report: dict[str, Metric] = super().report()
        for name, counted in (("bad_examples", self.bad), ("left_out", self.left_out)):
            if counted.count:
                report[name] = AverageMetric(counted.count)  # each process reads and counts all records
        return report

    def _read(self, file: str) -> Iterator[Episode]:
        return self.read(file, self.bad)

    def _give_candidates(self, message: Message) -> None:
        choices = message.pop(CHOICES, None)
        if self.sampler is not None and message.get("labels"):
            # New negatives each time in training; in evaluation always the same for an example.
            key = None if self.training else f"{message['text']}\n{message['labels'][0]}"
            labels = message["labels"]
            choices = self.sampler.draw_candidates(labels, inline=choices, key=key, positives=len(labels))
        if choices and self.gives_candidates:
            message["label_candidates"] = choices

    @property
    def _buffer(self) -> int:
        """The size of the shuffle buffer, in episodes."""
        return int(self.opt.get("shuffle_buffer", 4096))

    @property
    def _task_seed(self) -> int:
        """The seed that runs share: `--teacher_seed`."""
        return int(self.opt.get("teacher_seed") or 0)

    @property
    def _seed(self) -> int:
        """The seed of the order of training, which `--seed` changes too."""
        has_seed = self.opt.get("teacher_seed") is not None
        return self._task_seed if has_seed else int(self.opt.get("seed") or 0)

    def _open_epochs(self) -> Epochs:
        reader = _get_reader(self.opt)
        done = _compute_epochs_done(self.opt) if self.cycle else 0.0
        seen = round(done * self.num_examples() / reader.count) if done else 0  # a stream must be read to be counted
        if seen:
            logging.info(f"{self.opt['task']}: resumes after {seen} examples that this process has read before")
        if self.sampler:
            self.sampler.skip(seen, reader=reader)
        # batches by length and background workers take examples in another order
        irregular = self.opt.get("dynamic_batching") or self.opt.get("num_workers")
        return Epochs(
            self.source,
            reader=reader,
            seed=self._seed if self.cycle else None,
            endless=self.cycle,
            seen=seen,
            slots=1 if irregular else self.opt.get("batchsize", 1),
            draw=self._compose,
            mix=self._buffer if self.mutators else None,
        )


def _build_message(example: Example, *, is_last: bool) -> Message:
    labels = [example.label, *(text for text in example.right if text != example.label)]
    message = Message(text=example.text, labels=labels, episode_done=is_last)
    if example.labels is not None:
        message[GRADES] = [example.labels[text] for text in labels]
    if any("\n" in turn for turn in example.turns):
        message[MESSAGE_TURNS] = example.turns
    if example.candidates is not None:
        message[CHOICES] = example.candidates
    return message


def _get_reader(opt: Opt) -> Reader:
    """This process's reader. Each process of a distributed run has its own background workers."""
    background = opt.get("num_workers", 0) if DatatypeHelper.is_training(opt["datatype"]) else 0
    inner, number = max(1, background), opt.get("background_index") or 0
    return Reader(get_rank() * inner + number, num_workers() * inner)


def _compute_epochs_done(opt: Opt) -> float:
    """The epochs done by the training run that this one resumes, as ParlAI's training loop counts them; 0 for none."""
    model = opt.get("model_file")
    if not model:
        return 0.0
    checkpoint = opt.get("load_from_checkpoint") and os.path.isfile(f"{model}.checkpoint")
    stats = f"{model}.checkpoint.trainstats" if checkpoint else f"{model}.trainstats"
    if not os.path.isfile(stats):
        return 0.0
    with open(stats, encoding="utf-8") as file:
        return float(json.load(file).get("total_epochs", 0.0))


def _check_mutators(names: str | None) -> None:
    """Raises ConfigError for an unknown mutator, where ParlAI raises a bare KeyError."""
    setup_mutator_registry()
    for name in names.replace("+", ",").split(",") if names else ():
        if name not in MUTATOR_REGISTRY:
            raise ConfigError(f"unknown mutator {name!r}{suggest_similar(name, MUTATOR_REGISTRY)}", argument="mutators")
