"""The model card: facts of the run, nothing that is not known, no paths of the machine."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from polyencoder.data.example import Example
from polyencoder.evaluation.worst import WorstError
from polyencoder.export.card import set_calibration, update_card, write_model_card
from polyencoder.export.folder import export_folder
from polyencoder.export.training_run import TrainingRun
from tests.polyencoder.calibration.test_probability import calibrated

pytestmark = pytest.mark.slow


def test_the_facts_of_a_sentence_encoder(make_ranker):
    ranker = make_ranker("bi", reduction="mean", normalize=True, output_scaling=4.47)
    run = TrainingRun({"backbone": "all-MiniLM-L6-v2"}, updates=1200, examples=38_400, seed=7)
    lines = write_model_card(ranker, name="m", run=run).splitlines()
    assert {
        "| encoder | all-MiniLM-L6-v2: bert, 2 layers, 16 dimensions, 320 tokens |",
        "| reduction | mean |",
        "| normalization | vectors of length 1 |",
        "| output scaling | 4.47 |",
        "| trained for | 1,200 updates, 38,400 examples, seed 7 |",
    } <= {*lines}


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_the_card(make_ranker, architecture):
    ranker = make_ranker(architecture)
    run = TrainingRun({"task": "my|task", "learningrate": 5e-05}, {"valid": {"R20@1": 0.8367, "examples": 7801}})
    card = write_model_card(ranker, name="me/model", run=run, dtype="bfloat16", graphs="float32 and int8")
    kind = {"bi": "Bi-encoder", "poly": "Poly-encoder, 4 context vectors", "cross": "Cross-encoder"}.get(
        architecture, "Late-interaction encoder"
    )
    n_parameters = sum(p.numel() for p in ranker.model.parameters())
    assert {
        f"| architecture | {kind} |",
        f"| parameters | {n_parameters:,}, stored in bfloat16 |",
        "| encoder | bert, 2 layers, 16 dimensions, 320 tokens |",
        "| context | the latest 40 tokens |",
        "| ONNX graphs | float32 and int8 |",
        "| `--learningrate` | `5e-05` |",
        "| `--task` | `my\\|task` |",
        "|  | R20@1 | examples |",
        "| valid | 0.8367 | 7,801 |",
    } <= {*card.splitlines()}
    data = ModelCard(card).data
    assert (data.library_name, data.pipeline_tag, data.base_model) == ("polyencoder", "text-ranking", None)
    assert kind.split(",")[0].lower() in data.tags
    (result,) = data.eval_results
    assert (result.dataset_name, result.dataset_split, result.metric_name) == ("my|task", "validation", "R20@1")
    assert 'Ranker.from_pretrained("me/model")' in card
    assert ("ranker.search(" in card) == (architecture != "cross")
    assert f"torch {version('torch')}" in card


def test_no_paths_and_no_numbers_that_are_none(make_ranker):
    """A prompt that looks like a path is shown whole."""
    flags = {"train": "/home/me/a.jsonl,/home/me/b.jsonl", "backbone": "/home/me/minilm", "context_prompt": "/ask, "}
    run = TrainingRun(flags, {"valid": {"MRR": 0.5, "loss": float("nan")}})
    card = write_model_card(make_ranker("bi"), name="m", run=run)
    assert "/home" not in card
    assert {"| `--context-prompt` | `/ask, ` |", "| `--backbone` | `minilm` |"} <= {*card.splitlines()}
    (result,) = ModelCard(card).data.eval_results
    assert (result.dataset_name, result.metric_name) == ("a.jsonl, b.jsonl", "MRR")


def test_what_is_not_known_is_left_out(make_ranker):
    card = write_model_card(make_ranker("bi"), name="model")
    assert not any(word in card for word in ("None", "Results", "Training", "ONNX", "ParlAI", "unknown"))


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_the_usage_runs(make_ranker, tmp_path, monkeypatch, architecture):
    """What the card tells people to type."""
    make_ranker(architecture).save_pretrained(tmp_path / "model")
    card = write_model_card(make_ranker(architecture), name="model")
    monkeypatch.chdir(tmp_path)
    exec(card.partition("```python\n")[2].partition("```")[0], {})
    assert (tmp_path / "replies").is_dir() == (architecture == "poly")


MARKUP = "a\n<script>alert(1)</script>\r\n| `x` |"


def test_no_text_brings_markup_or_ends_a_line(make_ranker):
    """Flags, names, texts of the data and prompts; markdown-it-py reads the card as the hub does."""
    flags = {"task": MARKUP, "backbone": MARKUP, "context_prompt": MARKUP, "train": f"../alice/{MARKUP}"}
    example = Example([MARKUP], MARKUP, [MARKUP, "no"])
    worst = [WorstError(example, 2, 2, (MARKUP, 0.5), [(MARKUP, 1.0)])]
    run = TrainingRun(flags, {MARKUP: {"MRR": 0.5}})
    ranker = make_ranker("bi")
    card = write_model_card(ranker, name=MARKUP, run=run, worst=worst)
    for variant in (card, update_card(card, ranker, name=f"{MARKUP}2"), set_calibration(card, MARKUP, pictured=True)):
        body = ModelCard(variant).text
        tokens = MarkdownIt("commonmark").enable("table").parse(body)
        kinds = {part.type for token in tokens for part in (token, *(token.children or ()))}
        assert not kinds & {"html_block", "html_inline"}
        rows = [line for line in body.splitlines() if line.startswith("| ") and "--" in line and "---" not in line]
        assert len(rows) == len(flags)
        assert "alice" not in variant


def test_the_worst_errors_and_the_curve_are_shown(make_ranker):
    example = Example(["hello", "do you ski ?"], "yes", ["yes", "no", "maybe"])
    worst = [WorstError(example, 3, 3, ("yes", 0.25), [("no", 2.0), ("maybe" * 99, 1.0)])]
    card = write_model_card(make_ranker("bi"), name="m", curve=True, worst=worst)
    assert "- `do you ski ?`: rank 3 of 3\n  - right (0.25): `yes`\n  - above (2): `no`\n  - above (1): `maybe" in card
    assert max(map(len, card.splitlines())) < 300
    assert "](curve.svg)" in card
    assert "curve.svg" not in write_model_card(make_ranker("bi"), name="m")


def test_a_calibration_has_one_section(make_ranker):
    card = write_model_card(make_ranker("bi"), name="m", run=TrainingRun({"task": "t"}, {"valid": {"MRR": 0.5}}))
    first = set_calibration(card, "error 0.1", pictured=True)
    again = set_calibration(first, "error 0.2", pictured=False)
    assert first.index("## Results") < first.index("## Calibration") < first.index("## Training")
    assert "](reliability.svg)" in first
    assert (again.count("## Calibration"), "error 0.1" in again, "](reliability.svg)" in again) == (1, False, False)
    assert again.replace("## Calibration\n\nerror 0.2\n\n", "") == card
    assert set_calibration("# mine\n", "error", pictured=False) == "# mine\n\n## Calibration\n\nerror\n"


def test_an_export_has_the_section_and_picture_of_its_calibration_alone(make_ranker, tmp_path):
    """Not those of a calibration that the ranker does not have, such as that of its int8 graphs."""
    ranker = make_ranker("bi")
    export_folder(ranker, tmp_path / "model")
    card, picture = tmp_path / "model" / "README.md", tmp_path / "model" / "reliability.svg"
    plain = card.read_text().replace("model", "new")
    card.write_text(set_calibration(card.read_text(), "error 0.1", pictured=True))
    picture.touch()
    export_folder(ranker, tmp_path / "new", earlier=tmp_path / "model")
    assert (tmp_path / "new" / "README.md").read_text() == plain
    assert not (tmp_path / "new" / picture.name).exists()
    export_folder(calibrated(ranker), tmp_path / "new", earlier=tmp_path / "model")
    assert "error 0.1" in (tmp_path / "new" / "README.md").read_text()
    assert (tmp_path / "new" / picture.name).exists()
