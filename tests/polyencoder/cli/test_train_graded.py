"""`polyencoder train`, `evaluate` and `mine` on graded candidates: every objective raises nDCG."""

from __future__ import annotations

import json
import re

import pytest

from polyencoder.data.pairs import read_all_pairs
from polyencoder.errors import ConfigError, InputError
from polyencoder.settings.train import TrainSettings
from polyencoder.training.losses import LABEL_LOSSES
from polyencoder.training.run import train_ranker
from tests.commands import run_command
from tests.parameters import mostly_long
from tests.polyencoder.cli.conftest import KINDS, THINGS

pytestmark = pytest.mark.slow


def record(thing, kind, *, top):
    """Both words of the context make the best candidate, one of them a right one."""
    other = THINGS[THINGS.index(thing) - 3]
    candidates = [f"my {other} .", f"my {thing} is {kind} .", f"no {other} today .", f"my {thing} ."]
    return {"context": f"do you like {thing} {kind} ?", "candidates": candidates, "labels": [0, top, 0, top / 2]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """(largest label) -> a folder with train.jsonl and valid.jsonl."""

    def make(top):
        folder = tmp_path_factory.mktemp("graded")
        records = [record(thing, kind, top=top) for thing in THINGS for kind in KINDS[:4]]
        for name, part in (("train", records), ("valid", records[::3])):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        return folder

    return {top: make(top) for top in (1, 2)}


@pytest.fixture
def train(files, backbone_folder, tmp_path):
    """(objective, *arguments, top=1) -> the result of a short run."""

    def run(objective, *arguments, top=1):
        return run_command(
            *("train", "--backbone", backbone_folder("bert"), "--architecture", "bi", "--reduction", "mean"),
            *("--train", files[top] / "train.jsonl", "--valid", files[top] / "valid.jsonl", "--out", tmp_path / "out"),
            *("--objective", objective, "--batch-size", 10, "--learning-rate", 0.003, "--fine-tuned", "all"),
            *("--text-truncate", 16, "--label-truncate", 12, "--device", "cpu", "--epochs", 4, *arguments),
        )

    return run


@mostly_long("objective", ["softmax", *LABEL_LOSSES], quick=1)
def test_a_run_raises_ndcg(objective, train, files, tmp_path, caplog):
    done = train(objective, "--candidates", "inline")
    before, trained = (
        float(re.search(rf"{row} +nDCG@10 ([\d.]+)", done.output)[1]) for row in ("before training", "trained")
    )
    assert trained > before
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e-]+), R@1 of the batch", caplog.text)]
    assert len(losses) >= 4
    assert losses[-1] < losses[0]
    evaluated = run_command("evaluate", "-m", tmp_path / "out", "--data", files[1] / "valid.jsonl", "--json")
    report = json.loads(evaluated.output)
    assert report["nDCG@10"] == pytest.approx(trained, abs=1e-3)


def test_labels_that_an_objective_cannot_read(train, tmp_path):
    with pytest.raises(InputError, match=r"train.jsonl, line 1: objective bce reads labels as prob.*, but one is 2"):
        train("bce", "--candidates", "inline", top=2)
    with pytest.raises(ConfigError, match="objective listnet has no meaning with candidates 'batch'"):
        train("listnet", "--candidates", "batch")
    assert not (tmp_path / "out" / "polyencoder.json").exists()


def test_negatives_are_mined_beside_what_is_right(make_ranker, tmp_path, files):
    """What is mined can be trained on: a label for each candidate, and none of the right ones is a negative."""
    make_ranker("bi").save_pretrained(tmp_path / "model")
    rows = [json.loads(line) for line in (files[2] / "train.jsonl").read_text().splitlines()[:6]]
    rows += [{"context": "hi", "responses": ["my cat .", "my dogs ."]}]
    rows += [{"anchor": "hi", "positive": "my ski .", "negative": "my math ."}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = ["mine", "-m", tmp_path / "model", "-p", tmp_path / "pairs.jsonl", "--no-progress", "-n", 2]
    run_command(*mine, "-o", tmp_path / "out.jsonl")
    mined = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for row, mined_record in zip(rows[:6], mined, strict=False):
        assert mined_record["candidates"][:2] == [row["candidates"][1], row["candidates"][3]]
        assert mined_record["labels"] == [2, 1, 0, 0]
        assert not {*mined_record["candidates"][2:]} & {row["candidates"][1], row["candidates"][3]}
    assert mined[6]["candidates"][:2] == ["my cat .", "my dogs ."]
    assert mined[7]["candidates"][0] == "my ski ."
    assert not {*mined[6]["candidates"][2:], *mined[7]["candidates"][1:]} & {"my cat .", "my dogs .", "my ski ."}
    run_command(*mine[:4], tmp_path / "out.jsonl", *mine[5:], "-o", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (tmp_path / "out.jsonl").read_text()
    run_command(*mine, "--out-column", "hard", "-o", tmp_path / "hard.jsonl")
    hard = [json.loads(line) for line in (tmp_path / "hard.jsonl").read_text().splitlines()]
    assert [row["hard"] for row in hard] == [row["candidates"] for row in mined]
    assert all("candidates" not in row for row in hard[:6])  # the labels are of others now


def test_mined_candidates_never_have_the_labels_of_others(make_ranker, tmp_path):
    """Numbers that a pair without candidates has are none of its labels, until there are candidates beside them."""
    make_ranker("bi").save_pretrained(tmp_path / "model")
    rows = [{"context": f"hi {text}", "response": text, "labels": [2, 1]} for text in ("my cat .", "my dogs .")]
    rows += [{"messages": [{"role": "assistant", "content": "my ski ."}], "context": "hi", "response": "my ski ."}]
    rows[2] |= {"labels": ["sport", "greeting"]}
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mine = ("mine", "-m", tmp_path / "model", "-p", tmp_path / "pairs.jsonl", "--no-progress", "-n", 1)
    run_command(*mine, "-o", tmp_path / "out.jsonl")
    mined = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["labels"] for row in mined] == [[1, 0], [1, 0], ["sport", "greeting"]]


def test_records_in_memory_train_as_their_files_do(files, backbone_folder, tmp_path):
    """A `datasets.Dataset`, dictionaries or examples in place of files that do not exist; bad rows are named."""
    fields = {"backbone": str(backbone_folder("bert")), "architecture": "bi", "reduction": "mean", "device": "cpu"}
    fields |= {"objective": "ranknet", "candidates": "inline", "batch_size": 10, "max_updates": 3, "fine_tuned": "all"}
    paths = {part: str(files[1] / f"{part}.jsonl") for part in ("train", "valid")}
    rows = {part: [json.loads(line) for line in (files[1] / f"{part}.jsonl").open()] for part in paths}
    expected = train_ranker(TrainSettings(**fields, **paths, out=str(tmp_path / "files")))
    named = {"train": "my rows", "valid": "my other rows"}
    actual = train_ranker(
        TrainSettings(**fields, **named, out=str(tmp_path / "rows")),
        train=pytest.importorskip("datasets").Dataset.from_list(rows["train"]),
        valid=list(read_all_pairs(paths["valid"])),
    )
    assert (actual.before, actual.trained) == (expected.before, expected.trained)
    weights = [(tmp_path / name / "polyencoder.safetensors").read_bytes() for name in ("files", "rows")]
    assert weights[0] == weights[1]
    bad = [rows["train"][0], {**rows["train"][1], "labels": [1]}]
    settings = {**fields, **named, "out": tmp_path / "bad"}
    with pytest.raises(InputError, match="my rows, row 2: has 1 labels for 4 candidates"):
        train_ranker(TrainSettings(**settings), train=bad, valid=rows["valid"])
    with pytest.raises(InputError, match="my rows, row 1: is neither a record with named columns nor an Example: 'hi'"):
        train_ranker(TrainSettings(**settings), train=["hi"], valid=rows["valid"])
