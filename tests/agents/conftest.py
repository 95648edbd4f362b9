"""What the agents' tests share: a task small enough to learn in a second, and ParlAI's commands as functions.

Options are given as ParlAI's scripts take them in Python: `model_file=...` is `--model-file ...`.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import pytest
import torch
from parlai.agents.ranker.console import show_library_log
from parlai.agents.ranker.dialogue import fixed
from parlai.agents.ranker.launch import launch
from parlai.agents.ranker.model.loop import is_trained
from parlai.core.agents import create_agent
from parlai.core.message import Message
from parlai.scripts.build_dict import BuildDict
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainLoop, TrainModel

from polyencoder.encoding.torch_encoder import TorchEncoder
from polyencoder.errors import ConfigError
from polyencoder.training.process_group import VARIABLES
from polyencoder.training.randomness import seed_everything
from tests.plain_reports import plain_reports  # noqa: F401 - a fixture
from tests.processes import import_training

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "bee", "owl", "fox"]
LABELS = [f"my {animal} is here ." for animal in ANIMALS]
QUESTIONS = {
    "train": ["where is the {} ?", "tell me , is the {} with you ?", "i look for a {} ."],
    "valid": ["where is the {} ?", "tell me , is the {} with you ?"],
    "test": ["tell me , is the {} with you ?", "i look for a {} ."],
}

TINY = {"embedding_size": 32, "ffn_size": 64, "n_layers": 1, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
SIZES = ["embedding_size", "ffn_size", "n_layers", "n_heads", "dict_maxtokens"]  # not those of a pre-trained encoder
TINY |= {"repeat_blocking_heuristic": False}  # answers of the task do repeat: every second turn repeats the first
TINY |= {"text_truncate": 48, "label_truncate": 16, "dict_maxtokens": 400, "loglevel": "error"}
# Validation comes last in each run of so many epochs: the model that is saved is the one that training ends with.
LEARNING = {"learningrate": 1e-2, "warmup_updates": 5, "batchsize": 16, "eval_batchsize": 7, "seed": 1}
LEARNING |= {"num_epochs": 12.1, "validation_every_n_epochs": 4.0}
LEARNING |= {"validation_metric": "loss", "validation_cutoff": 0.0, "log_every_n_secs": -1.0}  # no clock has a say
PARTICULAR = {
    "biencoder": {"reduction_type": "mean"},
    "polyencoder": {"reduction_type": "mean", "poly_n_codes": 4},
    "crossencoder": {"learningrate": 3e-3, "num_epochs": 6.1, "validation_every_n_epochs": 2.0},
    "lateencoder": {"reduction_type": "mean"},
}


def _parse(**options: Any) -> Any:
    return TrainModel.setup_args().parse_kwargs(**{"loglevel": "error", **options})


def _numbers(report: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in report.items()}


def _episodes(part: str) -> list[list[dict[str, Any]]]:
    episodes = []
    for animal in ANIMALS:
        for number, question in enumerate(QUESTIONS[part]):
            turn = {"text": question.format(animal), "labels": f"my {animal} is here .", "label_candidates": LABELS}
            more = [{**turn, "text": f"is it really the {animal} ?"}] if number == 1 else []
            episodes.append([turn, *more])
    return episodes


@pytest.fixture(autouse=True)
def _calm() -> None:
    """The library's log is ParlAI's already: pytest looks for loggers that keep theirs before a test begins."""
    show_library_log()
    logging.logger.setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def labels() -> list[str]:
    """Every answer of the task: the candidates of each of its examples, in this order."""
    return list(LABELS)


@pytest.fixture(scope="session")
def make_task() -> Callable[..., dict[str, Any]]:
    """(folder, **parts) -> options of a task; a part, `train=`, `valid=` or `test=`, is a list of episodes of turns.

    A turn is a dictionary of ParlAI's text format. A part that is not given is the training part.
    """

    def line(turn: dict[str, Any], *, last: bool) -> str:
        fields = {name: "|".join(value) if isinstance(value, list) else value for name, value in turn.items()}
        if last:
            fields["episode_done"] = "True"
        return "\t".join(f"{name}:{value}".replace("\n", "\\n") for name, value in fields.items()) + "\n"

    def make(folder: Path, **parts: list[list[dict[str, Any]]]) -> dict[str, Any]:
        for part in ("train", "valid", "test"):
            episodes = parts.get(part, parts["train"])
            text = "".join(line(turn, last=turn is turns[-1]) for turns in episodes for turn in turns)
            (folder / f"task_{part}.txt").write_text(text, encoding="utf-8")
        path = str(folder / "task")
        return {"task": "fromfile", "fromfile_datapath": path, "fromfile_datatype_extension": True}

    return make


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory, make_task: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Options of a task: the answer names the animal of the question. Every second episode has two turns."""
    return make_task(tmp_path_factory.mktemp("task"), **{part: _episodes(part) for part in QUESTIONS})


@pytest.fixture(scope="session")
def easy_task(tmp_path_factory: pytest.TempPathFactory, make_task: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """The same task with candidates that can be told apart without the question: all but the label say "gone".

    A cross-encoder from scratch takes long to learn the other one.
    """
    parts = {part: _episodes(part) for part in QUESTIONS}
    for turn in (turn for episodes in parts.values() for turns in episodes for turn in turns):
        others = turn["label_candidates"]
        turn["label_candidates"] = [c if c == turn["labels"] else c.replace("here", "gone") for c in others]
    return make_task(tmp_path_factory.mktemp("easy"), **parts)


@pytest.fixture(scope="session")
def dictionary(tmp_path_factory: pytest.TempPathFactory, task: dict[str, Any]) -> str:
    """The path of the dictionary that is trained on the task."""
    path = str(tmp_path_factory.mktemp("dictionary") / "task.dict")
    BuildDict.main(model="biencoder", dict_file=path, dict_maxtokens=400, loglevel="error", **task)
    return path


@pytest.fixture
def candidates_file(tmp_path: Path) -> Path:
    """A file of fixed candidates: the answers of the task, one a line."""
    path = tmp_path / "answers.txt"
    path.write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def task_of(task: dict[str, Any], easy_task: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """(model) -> options of the task that the trained model of this kind has learned."""
    return lambda model: easy_task if model == "crossencoder" else task


@pytest.fixture(scope="session")
def train(task_of: Callable[[str], dict[str, Any]]) -> Callable[..., dict[str, float]]:
    """(model, model_file, **options) -> the last validation's report, of a tiny model of this kind on its task."""

    def run(model: str, model_file: Path | str, **options: Any) -> dict[str, float]:
        seed_everything(0)
        defaults = {**TINY, **LEARNING, **PARTICULAR[model], **task_of(model)}
        if options.get("backbone"):
            defaults = {name: value for name, value in defaults.items() if name not in SIZES}
        valid, _ = TrainModel.main(**{**defaults, "model": model, "model_file": str(model_file), **options})
        return _numbers(valid)

    return run


@pytest.fixture(scope="session")
def evaluate(task: dict[str, Any]) -> Callable[..., dict[str, float]]:
    """(model_file or None, **options) -> the report of `eval_model` on the validation part of the task."""

    def run(model_file: Path | str | None, **options: Any) -> dict[str, float]:
        defaults = {**task, "datatype": "valid", "batchsize": 8, "loglevel": "error"}
        model_option = {} if model_file is None else {"model_file": str(model_file)}
        return _numbers(EvalModel.main(**{**defaults, **model_option, **options}))

    return run


@pytest.fixture(scope="session")
def trained(
    train: Callable[..., dict[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, dict[str, float]]]:
    """(model) -> a trained model's file, not to be written to, and its last validation's report."""
    models: dict[str, tuple[Path, dict[str, float]]] = {}

    def get(model: str) -> tuple[Path, dict[str, float]]:
        if model not in models:
            path = tmp_path_factory.mktemp(model) / "model"
            models[model] = path, train(model, path)
        return models[model]

    return get


@pytest.fixture
def copy_of(trained: Callable[[str], tuple[Path, dict[str, float]]], tmp_path: Path) -> Callable[..., Path]:
    """(model, name="model") -> a copy of the trained model, in the test's own folder."""

    def copy(model: str, name: str = "model") -> Path:
        source, _ = trained(model)
        for suffix in ("", ".opt", ".dict", ".tokenizer.json"):
            shutil.copy(f"{source}{suffix}", tmp_path / f"{name}{suffix}")
        return tmp_path / name

    return copy


@pytest.fixture
def make_agent(dictionary: str, task: dict[str, Any]) -> Callable[..., Any]:
    """(model, **options) -> a tiny untrained agent on the task's dictionary. With `model_file=` of a file, that one."""

    def make(model: str, **options: Any) -> Any:
        if "model_file" in options and os.path.exists(options["model_file"]):
            # Not the beginning of a training loop, which would reset the counters to this file's.
            loading = {"model": model, "model_file": str(options["model_file"]), "load_from_checkpoint": False}
            return create_agent(_parse(**{**options, **loading}))
        particular = {"poly_n_codes": 4} if model == "polyencoder" else {}
        data = {} if "task" in options else task
        defaults = {**TINY, **particular, **data, "dict_file": dictionary, "datatype": "train"}
        unset = SIZES if options.get("backbone") else ["dict_maxtokens"] if options.get("init_model") else []
        defaults = {name: value for name, value in defaults.items() if name not in unset}
        opt = _parse(**{**defaults, "model": model, **options})
        return Beginning(opt).agent if opt.get("load_from_checkpoint") and is_trained(opt) else create_agent(opt)

    return make


class Beginning(TrainLoop):
    """ParlAI's training loop, as far as making its agent."""

    def __init__(self, opt: Any) -> None:
        self.agent = create_agent(opt)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """(model_file, lines, **options) -> what `interactive` answers to the lines; [DONE] ends a conversation."""

    def run(model_file: Path | str, lines: str, **options: Any) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        capsys.readouterr()
        Interactive.main(model_file=str(model_file), loglevel="error", **options)
        return answers_in(capsys.readouterr().out)

    return run


def answers_in(output: str) -> list[str]:
    """The replies of a model in the output of ParlAI's commands."""
    return re.findall(r"\[(?:\w+encoder|Convert)\]: (.*)", re.sub(r"\x1b\[[\d;]*m", "", output))


@pytest.fixture(scope="session")
def respond() -> Callable[..., list[Message]]:
    """(agent, *episodes) -> the agent's replies to the last turn of each episode, all answered as one batch.

    A turn is a dictionary of a message's fields, an episode one turn or a list of them; the answers to turns before the
    last are their labels.
    """

    def run(agent: Any, *episodes: dict[str, Any] | list[dict[str, Any]]) -> list[Message]:
        observations = []
        for number, episode in enumerate(episodes):
            turns = [episode] if isinstance(episode, dict) else episode
            clone = agent.clone()
            for turn in turns[:-1]:
                clone.observe(Message({"id": "test", "episode_done": False, **turn}))
                clone.self_observe(Message({"text": ""}))
            observations.append(clone.observe(Message({"id": f"test{number}", "episode_done": True, **turns[-1]})))
        return list(agent.batch_act(observations))

    return run


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch, trained: Callable[[str], Any]) -> list[list[str]]:
    """The candidates of each call to the encoder, from when the trained models are there."""
    for model in ("biencoder", "polyencoder"):
        trained(model)
    calls: list[list[str]] = []
    encode, stored, read = fixed.encode_candidates, TorchEncoder.encode_candidates, TorchEncoder.read_candidates

    def record(model: Any, text: Any, candidates: Any, **others: Any) -> Any:
        calls.append(list(candidates))
        return encode(model, text, candidates, **others)

    def recorded(method: Any) -> Any:
        def record_ids(self: Any, ids: Any, **others: Any) -> Any:
            if ids:
                calls.append([self.text.tokenizer.decode(list(row)).strip() for row in ids])
            return method(self, ids, **others)

        return record_ids

    monkeypatch.setattr(fixed, "encode_candidates", record)
    monkeypatch.setattr(TorchEncoder, "encode_candidates", recorded(stored))
    monkeypatch.setattr(TorchEncoder, "read_candidates", recorded(read))
    return calls


@pytest.fixture
def arguments() -> Callable[[dict[str, Any]], list[str]]:
    """Options -> the same as flags."""
    return lambda options: [part for name in options for part in (f"--{name.replace('_', '-')}", str(options[name]))]


@pytest.fixture
def free_port() -> Callable[[], AbstractContextManager[str]]:
    """() -> a port that no other process is given meanwhile: bound, but not listened at, so that torch may do that."""

    @contextmanager
    def hold() -> Iterator[str]:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("localhost", 0))
            yield str(holder.getsockname()[1])

    return hold


@pytest.fixture
def launched(arguments, free_port) -> Callable[..., list[Any]]:
    """(command, flags of each process) -> what each process gives, or the error that ended it."""

    def process(rank: int, count: int, port: str, command: list[str], pipe: Any) -> None:
        os.environ.update(
            zip(VARIABLES, (str(rank), str(count), str(rank), str(count), "localhost", port), strict=True)
        )
        try:
            pipe.send(launch(command))
        except ConfigError as error:
            pipe.send(str(error))

    def run(command: str, *flags: dict[str, Any]) -> list[Any]:
        import_training()
        context, started = multiprocessing.get_context("fork"), []
        with free_port() as port:
            for rank, options in enumerate(flags):
                ours, theirs = context.Pipe()
                target = (rank, len(flags), port, [command, *arguments(options)], theirs)
                child = context.Process(target=process, args=target, daemon=True)
                child.start()
                theirs.close()
                started.append((child, ours))
            answers = [pipe.recv() for _, pipe in started]
            for child, _ in started:
                child.join()
        return answers

    return run
