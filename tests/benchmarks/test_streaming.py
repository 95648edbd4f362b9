"""The streaming benchmark on small files: what it counts, what it leaves out, and that a stream stays small."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("parlai")
from parlai.utils import logging

from benchmarks import streaming
from polyencoder.errors import InputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

TURNS, DIALOGUES, ROWS = 4, 30, 40


@pytest.fixture
def datapath(tmp_path, monkeypatch) -> Path:
    """ConvAI2, DSTC7 and Ubuntu in miniature, but neither Wikipedia nor Reddit; ParlAI's log level is put back."""
    monkeypatch.setattr(logging.logger, "level", logging.logger.level)
    for folder in ("ConvAI2", "dstc7", "Ubuntu"):
        (tmp_path / folder).mkdir()
    lines = [f"{number} hi {number}\thello {number}" for number in range(1, 7)] * 2
    (tmp_path / "ConvAI2/train_self_original_no_cands.txt").write_text("\n".join(lines))
    dialogues = [_dialogue(number) for number in range(DIALOGUES)]
    (tmp_path / streaming.DSTC7).write_text(json.dumps(dialogues))
    with open(tmp_path / streaming.UBUNTU, "w", newline="") as file:
        rows = [[f"hi {n} __eou__ __eot__", f"hello {n} __eou__", float(n % 2)] for n in range(ROWS)]
        csv.writer(file).writerows([["Context", "Utterance", "Label"], *rows])
    return tmp_path


def _dialogue(number: int) -> dict:
    said = [{"speaker": f"participant_{turn % 2 + 1}", "utterance": f"{number} says {turn}"} for turn in range(TURNS)]
    options = [{"candidate-id": str(option), "utterance": f"option {option} of {number}"} for option in range(100)]
    return {
        "example-id": number,
        "messages-so-far": said,
        "options-for-correct-answers": [options[number]],
        "options-for-next": options,
    }


def test_report(datapath, monkeypatch, capsys):
    monkeypatch.setattr(streaming, "measure_alone", streaming.measure)  # one process instead of seven
    streaming.main(["--datapath", str(datapath), "--quick", "--gigabytes", "0.001", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"].keys() == {"wiki", "reddit"}

    examples = {(row["task"], row["datatype"]): row["examples"] for row in report["rows"]}
    plain = examples.pop(("selection:dstc7:plain", "train:ordered:stream"))
    assert plain > 1
    large = examples.pop(("selection:dstc7", "train:stream"))
    assert large % TURNS == 0
    assert large // TURNS > plain
    assert examples == {
        ("selection:convai2", "train:stream"): 12,
        ("selection:ubuntu:plain", "train:stream"): ROWS // 2,
        ("dstc7", "train:ordered:stream"): plain,
        ("selection:ubuntu:plain", "train:ordered:stream"): ROWS // 2,
        ("ubuntu", "train:ordered:stream"): ROWS,
    }
    rows = {(row["task"], row["datatype"]): row for row in report["rows"]}
    assert all(0 < row["first_example_s"] <= row["seconds"] for row in rows.values())
    summary, dstc7 = report["summary"], rows["selection:dstc7", "train:stream"]
    assert (summary["dstc7_peak_mb"], summary["dstc7_first_example_s"]) == (dstc7["peak_mb"], dstc7["first_example_s"])
    for name, ours in (("dstc7", "selection:dstc7:plain"), ("ubuntu", "selection:ubuntu:plain")):
        seconds = [rows[task, "train:ordered:stream"]["seconds"] for task in (name, ours)]
        assert summary[f"{name}_vs_parlai"] == pytest.approx(seconds[0] / seconds[1])


def test_written_dialogues_are_those_of_the_file(datapath, tmp_path):
    source, target = datapath / streaming.DSTC7, tmp_path / "large/dialogues.json"
    original = json.loads(source.read_text())
    size = int(2.5 * source.stat().st_size)
    streaming.write_dialogues(source, target, size=size)
    assert 0 <= target.stat().st_size - size < 2 * source.stat().st_size / DIALOGUES
    for place, dialogue in enumerate(written := json.loads(target.read_text())):
        assert dialogue == original[place % DIALOGUES]
    assert 2 * DIALOGUES < len(written) < 3 * DIALOGUES


def test_memory_of_a_stream_does_not_grow_with_its_file(datapath, tmp_path):
    file = tmp_path / "large" / streaming.DSTC7
    streaming.write_dialogues(datapath / streaming.DSTC7, file, size=40_000_000)
    case = {"task": "selection:dstc7", "datatype": "train:stream", "datapath": str(tmp_path / "large")}
    result = streaming.measure_alone(case)
    assert result["examples"] == TURNS * len(json.loads(file.read_text()))
    assert result["peak_mb"] < 20


def test_errors(datapath, tmp_path, capsys):
    with pytest.raises(SystemExit):
        streaming.main([])
    assert "--datapath is missing" in capsys.readouterr().err
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(InputError, match="empty.json: has no dialogue"):
        streaming.write_dialogues(tmp_path / "empty.json", tmp_path / "large/dialogues.json", size=10)
    (datapath / streaming.UBUNTU).write_text("Context,Utterance\n")
    with pytest.raises(SystemExit, match=r"-t selection:ubuntu: .*train.csv: holds no example"):
        streaming.measure_alone({"task": "selection:ubuntu", "datatype": "train:stream", "datapath": str(datapath)})
