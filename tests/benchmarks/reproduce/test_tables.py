"""Every table and every row at both scales: whole, without contradictions, and understood by the commands it runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.reproduce import checks, scales, tables
from benchmarks.reproduce.cells import get_run
from benchmarks.reproduce.plan import collect_runs
from benchmarks.reproduce.runs import Bindings, ReproductionRun, Step
from benchmarks.reproduce.scales import list_scale_names, read_scale
from benchmarks.reproduce.tables import read_table
from polyencoder.errors import ConfigError, InputError


@pytest.fixture
def write_table(tmp_path, monkeypatch):
    """(text) -> the table `mine` is that."""

    def write(text: str):
        monkeypatch.setattr(tables, "TABLES", tmp_path)
        (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
        return read_table("mine")

    return write


GOOD = """
title: Mine
source: nowhere
columns:
  - {title: first, task: convai2, metric: "valid/R20@1"}
  - {title: second, task: dstc7, metric: "test/{measure}", flags: {batchsize: 8}}
groups:
  - title: a group
    start: bert
    rows:
      - {name: one, title: One, model: bi, measure: mrr, paper: [83.3 ± 0.2, -], flags: {dropout: 0.1}}
"""


def test_a_cell_has_the_fields_of_its_group_row_and_column(write_table):
    table = write_table(GOOD)
    row, column = table.get_row("one"), table.columns[1]
    cell = table.get_cell(row, column)
    assert (cell.task, cell.start, cell.model, cell.metric) == ("dstc7", "bert", "bi", "test/mrr")
    assert cell.flags == {"dropout": 0.1, "batchsize": 8}
    assert (str(row.paper[0]), row.paper[1], row.group) == ("83.3 ± 0.2", None, "a group")
    assert table.list_measured(row) == [table.columns[0]]  # the paper has no number in the second


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: Mine", "titel: Mine", "titel is unknown; did you mean title"),
        ("source: nowhere\n", "", "source is missing"),
        ("source: nowhere", "source: [1]", "source cannot be"),
        ("[83.3 ± 0.2, -]", "[83.3 ± 0.2]", "row one: paper has 1 numbers for 2 columns"),
        ("83.3 ± 0.2", "83.3 +/- 0.2", "row one: '83.3 [+]/- 0.2' is not a number"),
        ("name: one, ", "", "row One: name is missing"),
        ("name: one, ", "name: one, name: two, ", "line 11: name is given twice"),
        ("rows:", "row:", "rows: must be a non-empty list"),
        ("title: Mine", "title: Mine\nunit: percents", "did you mean percent"),
        ("title: first,", "title: first, unit: mss,", "column 1: unit mss is unknown; did you mean ms"),
        ("title: first,", "title: first, digits: few,", "column 1: digits cannot be 'few'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(write_table, old, new, message):
    with pytest.raises((ConfigError, InputError), match=message):
        write_table(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: mine, based_on: base}", "mine.yaml: name is unknown"),
        ("{based_on: base, runs: {one: {name: two, missing: no data}}}", "mine.yaml, runs, one: name is unknown"),
        ("{based_on: base, runs: {one: {}}}", "mine.yaml, runs, one: needs steps"),
    ],
)
def test_a_scale_and_its_runs_are_named_in_one_place(tmp_path, monkeypatch, text, message):
    settings = "title: t, machine: m, seeds: 1, places: {}, flags: {}, families: {}, tasks: {}, starts: {}, runs: {}"
    (tmp_path / "base.yaml").write_text(f"{{{settings}}}")
    (tmp_path / "mine.yaml").write_text(text)
    monkeypatch.setattr(scales, "SCALES", tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_scale("mine")
    assert read_scale("base").name == "base"


def test_names_that_there_are_not_are_suggested():
    with pytest.raises(ConfigError, match="did you mean poly-10"):
        read_table("poly10")
    with pytest.raises(ConfigError, match="did you mean bert-bi"):
        read_table("poly-10").get_row("bert-bl")
    with pytest.raises(ConfigError, match="did you mean small"):
        read_scale("smal")


@pytest.mark.slow
@pytest.mark.parametrize("scale", list_scale_names())
def test_the_runs_of_all_tables_have_names_of_their_own_and_need_none_that_is_not_there(scale):
    runs = collect_runs(read_scale(scale))
    assert runs
    for run in runs.values():
        assert set(run.needs) <= runs.keys(), run.name
        assert run.missing or run.steps


@pytest.mark.slow
@pytest.mark.parametrize("scale", list_scale_names())
def test_the_commands_of_the_tables_are_understood(scale, tmp_path):
    at = read_scale(scale)
    bindings = Bindings({**at.places, "data": str(tmp_path), "updates": "2"}, runs=tmp_path)
    different: dict[object, ReproductionRun] = {}  # one of those that have the same flags, whatever their values
    for run in collect_runs(at).values():
        tried = run.make_smoke_test()  # with some words more
        different.setdefault(frozenset(word for step in tried.steps for word in step.command if word[:1] == "-"), tried)
    problems = [line for run in different.values() for line in checks.find_wrong(run, bindings)]
    assert not problems, "\n".join(problems)


def test_a_scale_that_is_based_on_another_has_its_values_where_it_names_none():
    base, small = read_scale("base"), read_scale("small")
    assert base.tasks["dstc7"] == small.tasks["dstc7"]
    assert base.families["poly"] == {**small.families["poly"], "learningrate": 5e-5, "warmup-examples": 6400}
    assert (base.tasks["convai2"].teacher, base.tasks["convai2"].examples) == ("selection:convai2:both_sides", 131438)
    assert base.tasks["convai2"].splits == small.tasks["convai2"].splits
    assert base.starts["bert"].missing
    assert not base.starts["reddit"].missing


def test_a_try_of_a_few_updates_warms_up_and_mines_within_them():
    runs = collect_runs(read_scale("small"))

    def tried(name: str) -> dict[str, str]:
        words = runs[name].make_smoke_test().steps[0].command[2:]
        return dict(zip(words[::2], words[1::2], strict=True))  # the last of a flag counts

    hard, convert = tried("convai2-fewest-bert-poly-16-hard-negatives"), tried("reddit-scratch-convert")
    numbers = [hard[f"--{name}"] for name in ("hard-negatives-every", "warmup-updates", "max-train-steps")]
    assert numbers == ["1", "0", "{updates}"]
    assert convert["--warmup-updates"] == "0"
    assert "--hard-negatives-every" not in convert


def test_flags_that_a_command_does_not_know_are_found(tmp_path):
    scale = read_scale("small")
    table = read_table("poly-10")
    run = get_run(scale, table.get_cell(table.get_row("bert-bi"), table.columns[0]), where="here")
    bindings = Bindings({**scale.places, "data": str(tmp_path)}, runs=tmp_path)
    train, *others = run.steps
    for words, message in ((["--lerningrate", "1"], "lerningrate"), (["--optimizer", "sdg"], "sdg")):
        wrong = type(run)(**{**vars(run), "steps": (type(train)(train.name, (*train.command, *words), {}), *others)})
        (line,) = checks.find_wrong(wrong, bindings)
        assert re.match(f"{run.name}, train: .*{message}", line)


def test_what_is_missing_is_named(tmp_path):
    scale = read_scale("paper")
    table = read_table("poly-10")
    run = get_run(scale, table.get_cell(table.get_row("reddit-bi"), table.columns[0]), where="here")
    bindings = Bindings({**scale.places, "data": str(tmp_path)}, runs=tmp_path)
    missing = checks.find_missing(run, bindings)
    assert [line for line in missing if "train_self_original.txt" in line]
    (tmp_path / "ConvAI2").mkdir()
    for name in ("train_self_original.txt.gz", "valid_self_original.txt"):
        (tmp_path / "ConvAI2" / name).touch()
    assert not [line for line in checks.find_missing(run, bindings) if "ConvAI2" in line]


def test_a_folder_needs_no_dot_before_its_name_to_be_a_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = Step("train", ("parlai", "train_model", "-m", "biencoder", "--backbone", "{minilm}"))
    bindings = Bindings({"data": "nowhere", "minilm": "runs/x/encoder"}, runs=tmp_path)

    def missing() -> list[str]:
        return checks.find_missing(ReproductionRun("mine", [step]), bindings)

    assert missing() == ["{minilm}: runs/x/encoder: no such folder or file"]
    (tmp_path / "runs/x/encoder").mkdir(parents=True)
    assert missing() == []
    bindings = replace(bindings, named={**bindings.named, "minilm": "encoder"})
    assert missing() == ["{minilm}: encoder, to be downloaded"]
    (tmp_path / "encoder").mkdir()
    assert missing() == []


def test_the_papers_settings_are_those_of_its_section_5_1():
    scale = read_scale("paper")
    table = read_table("poly-10")

    def words(row: str, column: int) -> dict[str, str]:
        command = (
            get_run(scale, table.get_cell(table.get_row(row), table.columns[column]), where="here").steps[0].command
        )
        flags = command[command.index("train_model") + 1 :]
        return dict(zip(flags[::2], flags[1::2], strict=True))

    bert, cross, reddit = (words(row, 0) for row in ("bert-bi", "bert-cross", "reddit-poly-64"))
    ubuntu = words("bert-cross", 6)
    batches = [bert["--batchsize"], words("bert-poly-16", 2)["--batchsize"], cross["--batchsize"]]
    assert [8 * int(batch) for batch in batches] == [512, 256, 16]  # of eight processes
    assert (bert["--optimizer"], bert["--weight-decay"], reddit["--optimizer"]) == ("adamw", "0.01", "adamax")
    assert (bert["--type-optimization"], reddit["--type-optimization"]) == ("all_encoder_layers", "all")
    assert (bert["--warmup-updates"], cross["--warmup-updates"], bert["--learningrate"]) == ("100", "1000", "5e-05")
    assert (bert["--lr-scheduler-decay"], bert["--validation-every-n-epochs"]) == ("0.4", "0.5")
    assert (cross["--num-negatives"], ubuntu["--num-negatives"]) == ("19", "15")
    assert (reddit["--output-scaling"], reddit["--poly-n-codes"]) == ("0.06", "64")
