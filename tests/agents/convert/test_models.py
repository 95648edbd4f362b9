"""Models that one loop has made, in the other's commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from parlai.scripts.eval_model import EvalModel

from polyencoder import Ranker
from polyencoder.errors import CheckpointError
from tests.commands import run_command

pytestmark = pytest.mark.slow


@pytest.fixture
def run():
    return lambda *arguments: run_command(*arguments).output


@pytest.fixture
def examples(task, labels, tmp_path):
    """The task's validation part as JSON lines: a file, and the folder of `-t selection:jsonl`."""
    path = tmp_path / "pairs" / "valid.jsonl"
    path.parent.mkdir()
    records, context = [], []
    for line in Path(f"{task['fromfile_datapath']}_valid.txt").read_text(encoding="utf-8").splitlines():
        fields = dict(part.split(":", 1) for part in line.split("\t"))
        context = [*context, fields["text"]]
        records.append({"context": context, "response": fields["labels"], "candidates": labels})
        context = [] if fields.get("episode_done") else [*context, fields["labels"]]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    for split in ("train", "test"):
        shutil.copy(path, path.with_name(f"{split}.jsonl"))
    return path


def test_a_model_of_parlai_in_the_commands(fitted, examples, labels, run, tmp_path):
    path, report = fitted
    measured = json.loads(run("evaluate", "--model", path, "--data", examples, "--json"))
    assert (measured["hits@1"], measured["loss"]) == (
        pytest.approx(report["hits@1"]),
        pytest.approx(report["loss"], rel=1e-5),
    )

    (tmp_path / "replies.txt").write_text("\n".join(labels) + "\n")
    model = tmp_path / "model"
    for suffix in ("", ".opt", ".dict", ".tokenizer.json"):
        shutil.copy(f"{path}{suffix}", f"{model}{suffix}")
    run("index", "--model", model, "--candidates", tmp_path / "replies.txt", "--out", tmp_path / "index")
    run("calibrate", "--model", model, "--data", examples)
    command = ["search", "--model", model, "--index", tmp_path / "index", "--context", "where is the owl ?", "--json"]
    assert "my owl is here ." in run(*command).splitlines()[0]

    run("export", model, tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "A ConveRT that ranks replies" in card
    assert "| `--extra-contexts` | `3` |" in card
    assert "--history-size" not in card
    again = Ranker.from_pretrained(tmp_path / "exported", device="cpu")
    contexts = [["where is the owl ?"], ["hi", "ho", "is it the cat ?"]]
    torch.testing.assert_close(
        torch.as_tensor(again.score(contexts, labels)),
        torch.as_tensor(Ranker.from_pretrained(path, device="cpu").score(contexts, labels)),
    )


def test_a_folder_of_polyencoder_train_in_parlai(small, examples, run, learn, tmp_path):
    out = tmp_path / "out"
    run(
        *("train", "--architecture", "convert", "--init", small(extra_contexts=3), "--train", examples),
        *("--valid", examples, "--out", out, "--batch-size", 8, "--max-updates", 6, "--device", "cpu"),
    )
    measured = json.loads(run("evaluate", "--model", out, "--data", examples, "--json"))
    data = {"task": "selection:jsonl", "selection_folder": str(examples.parent), "loglevel": "error"}
    report = EvalModel.main(model="convert", init_model=str(out), datatype="valid", batchsize=8, **data)
    assert report["loss"].value() == pytest.approx(measured["loss"], rel=1e-5)
    report = EvalModel.main(model="convert", model_file=str(out), datatype="valid", batchsize=8, **data)
    assert report["loss"].value() == pytest.approx(measured["loss"], rel=1e-5)
    before = sorted(path.name for path in out.iterdir())
    with pytest.raises(CheckpointError, match="is a folder: give another --model-file, and"):
        learn(out, **data, model="convert", max_train_steps=3, num_negatives=3)
    assert sorted(path.name for path in out.iterdir()) == before

    scale = int(Ranker.from_pretrained(out, device="cpu").model.scale.batches)
    learn(tmp_path / "further", **data, init_model=str(out), num_epochs=-1, max_train_steps=3, num_negatives=3)
    further = Ranker.from_pretrained(tmp_path / "further", device="cpu").model
    assert int(further.scale.batches) == scale + 3
    assert further.sizes.head_sizes == (24, 24)


def test_the_folder_of_another_ranker_starts_one_of_its_kind(trained, make_agent, tmp_path):
    path, _ = trained("biencoder")
    ranker = Ranker.from_pretrained(path, device="cpu")
    ranker.save_pretrained(tmp_path / "folder")
    agent = make_agent("biencoder", init_model=str(tmp_path / "folder"), dict_file=None)
    assert agent.dict.text.tokenizer.to_str() == ranker.text.tokenizer.to_str()
    for name, tensor in agent.ranker.state_dict().items():
        assert torch.equal(tensor, ranker.model.state_dict()[name]), name
