"""The same files through `polyencoder train` and `parlai train_model -t selection:jsonl`, one seed: the same losses.

So both loops take the same examples in the same order, draw the same candidates, and update the same weights alike.
"""

from __future__ import annotations

import json

import pytest
import torch
from parlai.scripts.train_model import TrainModel

from polyencoder import Ranker
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from polyencoder.training.randomness import seed_everything
from polyencoder.training.trainer import Trainer
from tests.commands import run_command
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

UPDATES, EXAMPLES = 8, 30  # batches of four: more than an epoch
NAMES = {"bi": "biencoder", "poly": "polyencoder", "cross": "crossencoder"}
SIZES = {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "dropout": 0.1, "dict_maxtokens": 300}
QUANTIZED = {"quantization-aware": None, "quantization-update": 3}
NEVER = {"validation_every_n_secs": -1.0, "validation_every_n_epochs": -1.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write):
    """Pairs; every third has its own candidates."""
    folder = tmp_path_factory.mktemp("pairs")
    records = [
        {"context": ["hello !", f"where is number {n} ?"], "response": f"number {n} is here ."} for n in range(EXAMPLES)
    ]
    for n, record in enumerate(records):
        if n % 3 == 1:
            record["candidates"] = [record["response"], "no .", f"number {n} , maybe ."]
    for split in ("train", "valid", "test"):
        write(folder / f"{split}.jsonl", records)
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory, folder):
    """(architecture) -> a model file that both begin with."""
    models: dict[str, str] = {}

    def make(architecture: str) -> str:
        if architecture not in models:
            path = str(tmp_path_factory.mktemp(architecture) / "start")
            options = {"task": "selection:jsonl", "selection_folder": str(folder), "max_train_steps": 1} | NEVER
            options |= {"candidates": "inline", "num_negatives": 3, "text_truncate": 48, "label_truncate": 16}
            options |= SIZES | ({"poly_n_codes": 4} if architecture == "poly" else {})
            TrainModel.main(model=NAMES[architecture], model_file=path, loglevel="error", seed=1, **options)
            models[architecture] = path
        return models[architecture]

    return make


@pytest.fixture
def learn_the_same(monkeypatch):
    """(options of ParlAI, flags of ours) -> the mean loss of each step of ours, which is that of ParlAI's command."""
    seen: list[float] = []
    step = Trainer.step

    def observed(self, batch):
        outcome = step(self, batch)
        seen.append(float(outcome.losses.mean()))
        return outcome

    monkeypatch.setattr(Trainer, "step", observed)

    def record(run) -> list[float]:
        seen.clear()
        run()
        return list(seen)

    def compare(with_parlai: dict, ours: dict, *, updates: int = UPDATES, tolerance: float = 1e-6) -> list[float]:
        flags = [(f"--{name.replace('_', '-')}", value) for name, value in ours.items()]
        arguments = [word for flag, value in flags for word in ((flag,) if value is None else (flag, str(value)))]
        theirs = record(lambda: TrainModel.main(**with_parlai))
        mine = record(lambda: run_command("train", *arguments))
        assert len(mine) == updates
        assert mine == pytest.approx(theirs, abs=tolerance)
        return mine

    return compare


@mostly_long(
    ("architecture", "candidates", "stream"),  # each with each of both others
    [
        ("bi", "batch", False),
        ("poly", "inline", False),
        ("cross", "inline", True),
        ("bi", "inline", True),
        ("bi", "batch-all-cands", False),
        ("poly", "batch", True),
        ("poly", "batch-all-cands", True),
        ("cross", "batch", False),
        ("cross", "batch-all-cands", False),
    ],
    quick=3,
)
def test_both_commands_learn_the_same(folder, start, learn_the_same, tmp_path, architecture, candidates, stream):
    init = start(architecture)
    drawn = {} if candidates == "batch" else {"num_negatives": 3}
    with_parlai = {"model": NAMES[architecture], "task": "selection:jsonl", "selection_folder": str(folder)}
    with_parlai |= {"init_model": init, "dict_file": f"{init}.dict", "model_file": str(tmp_path / "theirs")}
    with_parlai |= {"candidates": candidates, "batchsize": 4, "seed": 3, "max_train_steps": UPDATES} | drawn
    with_parlai |= {"learningrate": 1e-3, "warmup_updates": 2, "gradient_clip": 1.0, "type_optimization": "all"}
    with_parlai |= {"text_truncate": 48, "label_truncate": 16, "loglevel": "error"} | NEVER
    if architecture == "poly":
        with_parlai |= {"poly_n_codes": 4}

    ours = {"train": folder / "train.jsonl", "valid": folder / "valid.jsonl", "out": tmp_path / "ours", "init": init}
    ours |= {"architecture": architecture, "candidates": candidates, "batch-size": 4, "seed": 3} | drawn
    ours |= {"max-updates": UPDATES, "learning-rate": 1e-3, "warmup-updates": 2, "clip": 1.0, "fine-tuned": "all"}
    ours |= {"schedule": "plateau", "evaluations": 0.1, "device": "cpu"}
    if stream:
        with_parlai |= {"datatype": "train:stream"}
        ours |= {"streaming": None}
    assert len({round(loss, 3) for loss in learn_the_same(with_parlai, ours, tolerance=1e-5)}) > 5


@pytest.fixture(scope="module")
def convert(tmp_path_factory, folder):
    """(extra_contexts) -> the folder of a ConveRT that both begin with."""
    records = (json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines())
    texts = [text for record in records for text in (*record["context"], record["response"])]
    vocabulary = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    vocabulary.write_text(learn_subwords(count_words(texts), SubwordSettings(min_count=3)).to_str(), encoding="utf-8")
    sizes = {"hidden_size": 16, "attention_limits": (2, 8), "attention_size": 8, "intermediate_size": 32}
    sizes |= {"reduction_size": 8, "head_sizes": (24, 24), "output_size": 16, "scale_batches": 100}

    def make(extra_contexts: int) -> str:
        path = str(tmp_path_factory.mktemp("convert") / "start")
        seed_everything(0)
        Ranker.from_vocabulary(vocabulary, device="cpu", extra_contexts=extra_contexts, **sizes).save_pretrained(path)
        return path

    return make


@mostly_long(
    ("extra_contexts", "candidates", "flags"),  # each with each of both others
    [(10, "batch", QUANTIZED), (0, "batch", {}), (0, "inline", QUANTIZED), (10, "inline", {})],
    quick=1,
)
def test_convert_learns_the_same(folder, convert, learn_the_same, tmp_path, extra_contexts, candidates, flags):
    """With what suits it: ADADELTA, a cosine, clipped embeddings, dropout, smoothed labels, several objectives."""
    init = convert(extra_contexts)
    drawn = {} if candidates == "batch" else {"num_negatives": 3}
    with_parlai = {"model": "convert", "task": "selection:jsonl", "selection_folder": str(folder), "loglevel": "error"}
    with_parlai |= {"init_model": init, "model_file": str(tmp_path / "theirs"), "candidates": candidates}
    with_parlai |= {"batchsize": 4, "seed": 3, "max_train_steps": UPDATES} | drawn | NEVER
    with_parlai |= {name.replace("-", "_"): True if value is None else value for name, value in flags.items()}

    ours = {"train": folder / "train.jsonl", "valid": folder / "valid.jsonl", "out": tmp_path / "ours", "init": init}
    ours |= {"architecture": "convert", "candidates": candidates, "batch-size": 4, "seed": 3} | drawn
    ours |= {"max-updates": UPDATES, "evaluations": 0.1, "device": "cpu"} | flags
    assert len({round(loss, 3) for loss in learn_the_same(with_parlai, ours)}) > 5
    # our folder may hold the model before training, where that is the better one; the last one is in the checkpoint
    last = torch.load(tmp_path / "ours" / "training" / "checkpoint.pt", weights_only=True)["run"]["model"]
    trained = torch.load(tmp_path / "theirs", weights_only=True)["model"]
    assert trained.keys() == last.keys()
    for name, tensor in trained.items():
        torch.testing.assert_close(tensor, last[name], msg=name)


@pytest.mark.long
def test_convert_begins_with_the_same_weights(folder, convert, learn_the_same, tmp_path):
    """A new model over a vocabulary, by the flags and the paper's numbers."""
    vocabulary, updates = convert(0), 4
    sizes = {"hidden_size": 8, "intermediate_size": 16, "attention_limits": "2,8", "scale_batches": 3}
    sizes |= {"extra_contexts": 2, "vocabulary": vocabulary}
    with_parlai = {"model": "convert", "task": "selection:jsonl", "selection_folder": str(folder), "loglevel": "error"}
    with_parlai |= {"model_file": str(tmp_path / "theirs"), "batchsize": 4, "seed": 3, "max_train_steps": updates}
    ours = {"architecture": "convert", "train": folder / "train.jsonl", "valid": folder / "valid.jsonl"}
    ours |= {"out": tmp_path / "ours", "batch_size": 4, "seed": 3, "max_updates": updates, "device": "cpu"}
    ours |= {"evaluations": 0.1} | sizes
    learn_the_same(with_parlai | sizes | NEVER, ours, updates=updates)
