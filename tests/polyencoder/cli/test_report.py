"""`polyencoder report`: the page of a tiny run, whose numbers are those that the run recorded."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from polyencoder import Ranker
from polyencoder.cli.report import ReportSettings
from polyencoder.cli.report import report as write_report
from polyencoder.errors import CheckpointError, ConfigError, PolyencoderError
from polyencoder.evaluation.names import main_measures
from tests.commands import command_fails, run_command
from tests.html_page import Page

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("drawn_curves")]

THINGS = ["dogs", "cat", "teacher", "math", "school", "ski", "mountains", "brother", "pets", "living"]
MARKUP = "<script>document.title = 'broken'</script> &amp; <b>bold</b>"


@pytest.fixture(scope="module")
def trained(tmp_path_factory, backbone_folder):
    """A folder with a run, `run`, and its data."""
    folder = tmp_path_factory.mktemp("report")
    records = [
        {"context": ["hello !", f"do you like {thing} {MARKUP} ?"], "response": f"my {thing} {MARKUP} ."}
        for thing in THINGS
    ]
    for name, part in (("train", records), ("valid", records[::2])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    flags = ["--batch-size", 5, "--learning-rate", 0.001, "--epochs", 2, "--num-negatives", 4, "--seed", 3]
    model = ["--backbone", backbone_folder("bert"), "--n-codes", 4, "--device", "cpu", "--text-truncate", 24]
    files = ["--train", folder / "train.jsonl", "--valid", folder / "valid.jsonl", "--out", folder / "run"]
    run_command("train", *files, *model, *flags)
    return folder


@pytest.fixture
def made(trained, tmp_path, monkeypatch):
    """A copy of it, in which commands run."""
    shutil.copytree(trained, tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")
    return tmp_path / "made"


def report(*arguments: object) -> Page:
    run_command("report", "run", "--html", "page.html", "--overwrite", "--device", "cpu", *arguments)
    with open("page.html", encoding="utf-8") as file:
        return Page(file.read())


OF_THE_RUN = ["--data", "valid.jsonl", "--negatives", "train.jsonl"]


def recorded(made) -> dict:
    return torch.load(made / "run" / "training" / "checkpoint.pt", weights_only=True)["run"]


def rows_of(table: list[list[str]]) -> dict[str, list[str]]:
    return {name: values for name, *values in table}


def test_each_number_is_that_of_the_runs_record(made):
    page, state = report(*OF_THE_RUN), recorded(made)
    states, record = state["callbacks"][0], json.loads((made / "run" / "training" / "run.json").read_text())
    measures, settings, of_data = page.tables[0], rows_of(page.tables[1][1:]), page.tables[2]

    best, baselines = states["best"], states["baselines"]
    reports = [best["report"], baselines["before"], baselines["tfidf"]]
    names = [*main_measures(best["report"])]
    numbers = [[main_measures(one).get(name) for name in names] for one in reports]
    shown = [["" if one is None else f"{one:.4g}" for one in row] for row in numbers]
    assert measures[0] == ["", *names]
    assert [row[1:] for row in measures[1:]] == shown
    assert [row[0] for row in measures[1:]] == ["valid", "before training, a bi-encoder of the backbone", "TF-IDF"]
    assert of_data == [["", *names], ["", *shown[0]]]  # the same candidates are drawn
    assert f"after {best['updates']} of {state['progress']['updates']} updates" in " ".join(page.words)

    assert settings["--learning-rate"] == ["0.001", "5e-05"]
    assert settings["--epochs"] == ["2", "3"]
    assert settings["--n-codes"] == ["4", ""]
    assert settings["--batch-size"][0] == "5"
    given = {"train", "valid", "out", "backbone", "device", "batch-size", "learning-rate", "epochs", "num-negatives"}
    assert settings.keys() == {f"--{name}" for name in given | {"seed", "n-codes", "text-truncate"}}
    assert f"The other {len(record['options']) - len(settings)} settings" in " ".join(page.words)

    facts = {name: value for table in page.tables[3:] for name, value in (row for row in table if len(row) == 2)}
    progress, end = state["progress"], record["starts"][-1]["end"]
    assert facts["examples"] == f"{progress['examples']:,}"
    assert facts["updates"] == f"{progress['updates']:,}"
    assert facts["seconds"] == f"{progress['seconds']:.4g}"
    assert facts["examples per second, with evaluations"] == f"{progress['examples'] / progress['seconds']:.4g}"
    assert facts["peak memory of the process"] == f"{end['peak_bytes'] / 2**20:,.0f} MiB"
    assert end["peak_bytes"] > 50 << 20
    assert facts["torch"] == record["starts"][0]["versions"]["torch"]


def test_the_worst_errors_show_what_was_ranked_above_and_markup_as_text(made):
    page = report(*OF_THE_RUN)
    ranker = Ranker.from_pretrained("run", device="cpu")
    errors = [table for table in page.tables if table[0] == ["", "response", "score"]]
    assert errors, "the tiny model is right everywhere: train it less"
    ranks = [word for word in page.words if word.startswith("Rank ")]
    assert [int(one.split()[1]) for one in ranks] == sorted((int(one.split()[1]) for one in ranks), reverse=True)
    for rank, (_, right, *above) in zip(ranks, errors, strict=True):
        assert right[1].endswith(f"{MARKUP} .")
        thing = right[1].split()[1]
        texts = [text for _, text, _ in (right, *above)]
        found = {one.text: one.score for one in ranker.rank(["hello !", f"do you like {thing} {MARKUP} ?"], texts)}
        assert {text: float(score) for _, text, score in (right, *above)} == pytest.approx(found, rel=2e-3)
        assert all(float(score) >= float(right[2]) for *_, score in above)
        assert len(above) == min(3, int(rank.split()[1]) - 1)
    assert not {"script", "b", "img"} & {tag for tag, _ in page.tags}
    assert page.loads == []
    assert "svg" in {tag for tag, _ in page.tags}


def test_probabilities_of_a_calibrated_model_are_shown(made):
    with open("train.jsonl") as file:
        lines = file.readlines()
    ranker = Ranker.from_pretrained("run", device="cpu")
    responses = [json.loads(line)["response"] for line in lines]
    best = [{**json.loads(line), "candidates": responses} for line in lines]
    for one in best[:8]:  # right in most of them
        one["response"] = ranker.rank(one["context"], responses)[0].text
    with open("held.jsonl", "w") as file:
        file.writelines(json.dumps(one) + "\n" for one in best)
    run_command("calibrate", "-m", "run", "-d", "held.jsonl", "--device", "cpu")
    calibration = json.loads((made / "run" / "calibration.json").read_text())
    page = report("--data", "held.jsonl")
    assert [tag for tag, _ in page.tags].count("svg") == 2  # the curve, and how reliable the probabilities are
    facts = {name: value for table in page.tables for name, value in (row for row in table if len(row) == 2)}
    assert facts["temperature"] == f"{calibration['temperature']:.4g}"
    assert facts["none"] == f"{calibration['none']:.4g}"
    assert facts["fitted on"] == "held.jsonl"
    bins = next(table for table in page.tables if table[0] == ["share", "probability", "right"])[1:]
    assert sum(float(share) for share, *_ in bins) == pytest.approx(1, abs=1e-3)
    error = sum(float(share) * abs(float(p) - float(right)) for share, p, right in bins)
    words = " ".join(page.words)
    assert float(words.partition("calibration error ")[2].split(",")[0]) == pytest.approx(error, abs=1e-3)
    assert "give --data FILE" in " ".join(report().words)


def test_candidates_are_drawn_from_all_right_responses(made):
    """As in the run's evaluations: of two examples with two right responses each, two others can be drawn."""
    records = [{"context": "hello !", "responses": ["my dogs .", "my cat ."]}]
    records += [{"context": "do you like math ?", "responses": ["my math .", "my school ."]}]
    (made / "several.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    table = report("--data", "several.jsonl", "--num-negatives", 2).tables[2]
    assert "R4@1" in table[0]


def test_what_is_missing_is_named(made):
    words = " ".join(report().words)
    assert "Missing: give --data FILE" in words
    assert "Missing: the model is not calibrated" in words
    (made / "run" / "training" / "checkpoint.pt").unlink()
    record = json.loads((made / "run" / "training" / "run.json").read_text())
    del record["starts"][-1]["end"]
    (made / "run" / "training" / "run.json").write_text(json.dumps(record))
    page = report()
    words = " ".join(page.words)
    for missing in ("the curve", "measures and baselines", "the speed", "the memory"):
        assert f"Missing: {missing}" in words
    assert "svg" not in {tag for tag, _ in page.tags}
    assert rows_of(page.tables[0])["--epochs"] == ["2", "3"]


def test_without_matplotlib_the_page_says_so(made, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert "pip install 'parlai-polyencoder[plot]'" in " ".join(report().words)


def test_a_page_that_another_process_writes_meanwhile_is_kept(made, monkeypatch):
    def meanwhile(*arguments, **options) -> str:
        (made / "page.html").write_text("theirs")
        return "mine"

    monkeypatch.setattr("polyencoder.report.page.report_page", meanwhile)
    with pytest.raises(PolyencoderError, match="another process has written it meanwhile"):
        write_report(made / "run", settings=ReportSettings(html=made / "page.html"))
    assert (made / "page.html").read_text() == "theirs"
    (made / "page.html").unlink()


def test_where_it_is_written_and_what_it_refuses(made):
    assert "without the worst errors: give --data" in run_command("report", "run").stdout
    run_command("report", "run")  # replaces its own page
    first = (made / "run" / "training" / "report.html").read_bytes()
    (made / "page.html").write_text("not to be lost")
    command_fails(ConfigError, "exists already", "report", "run", "--html", "page.html")
    for read in (["--data", "page.html"], ["--data", "valid.jsonl", "--negatives", "page.html"]):
        command_fails(ConfigError, "is read, and", "report", "run", "--html", "page.html", "--overwrite", *read)
    command_fails(ConfigError, "seed is read only with data", "report", "run", "--seed", 4)
    command_fails(CheckpointError, "no training run: it has no training/run.json", "report", ".")
    (made / "run" / "training" / "checkpoint.pt").write_bytes(b"torn")
    command_fails(CheckpointError, "checkpoint.pt: damaged", "report", "run")
    for text, message in (("[1]", "run.json: damaged"), ('{"options": {}, "starts": []}', "another command recorded")):
        (made / "run" / "training" / "run.json").write_text(text)
        command_fails(CheckpointError, message, "report", "run")
    assert (made / "page.html").read_text() == "not to be lost"
    assert (made / "run" / "training" / "report.html").read_bytes() == first
