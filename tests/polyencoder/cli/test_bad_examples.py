"""Records that cannot be used in `evaluate`, `calibrate` and `mine`: an error that names the flag, or a count."""

from __future__ import annotations

import datetime
import decimal
import json

import pytest

from tests.commands import invoke, run_command

pytestmark = pytest.mark.slow

PAIRS = [{"context": f"do you have {n} pets ?", "response": f"i have {n} dogs ."} for n in range(30)]
COMMANDS = {
    "evaluate": ["--num-negatives", 5, "--data"],
    "calibrate": ["--num-negatives", 5, "--data"],
    "mine": ["--no-progress", "--out", "out.jsonl", "--pairs"],
}


@pytest.fixture(autouse=True)
def model(make_ranker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_ranker("bi").save_pretrained("model")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_record_is_an_error_with_the_flag_or_skipped_and_counted(command, tmp_path):
    lines = [json.dumps(pair) for pair in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join([*lines[:3], '{"context": "hi", "response": ""}', *lines[3:]]))
    words = [command, "--model", "model", *COMMANDS[command], "pairs.jsonl"]
    result = invoke(*words)
    assert result.exit_code == 1
    assert "pairs.jsonl, line 4" in result.stderr
    assert "--skip-bad-examples" in result.stderr
    result = run_command(*words, "--skip-bad-examples")
    assert "1 bad record was left out" in result.stderr
    assert "pairs.jsonl, line 4" in result.stderr
    assert "30" in result.stdout


def test_an_example_with_one_candidate_is_a_bad_one_for_evaluate(tmp_path):
    """It can be read, but has nothing to rank. Of different numbers of candidates each k of hits@k is shown."""
    lists = [["yes .", "yes ."], ["yes .", "no ."], ["yes .", "no .", "what ?"]]
    rows = [{"context": "do you ski ?", "response": "yes .", "candidates": candidates} for candidates in lists]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["evaluate", "--model", "model", "--data", "pairs.jsonl", "--hits-at", "2,7"]
    result = invoke(*words)
    assert result.exit_code == 1
    assert "pairs.jsonl, line 1: the label 'yes .' is its only candidate" in result.stderr
    result = run_command(*words, "--skip-bad-examples")
    assert "1 bad record was left out" in result.stderr
    assert result.stdout.startswith("2 examples: hits@2 ")
    assert "  hits@7 1  MRR " in result.stdout


@pytest.fixture
def table(tmp_path):
    """(column of values) -> a Parquet file of the pairs with that column."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")

    def write(values) -> str:
        columns = {name: [pair[name] for pair in PAIRS] for name in ("context", "response")}
        parquet.write_table(arrow.table({**columns, "more": values}), tmp_path / "pairs.parquet")
        return "pairs.parquet"

    return write


@pytest.mark.parametrize(
    ("value", "written"), [(datetime.date(2026, 11, 28), "2026-11-28"), (decimal.Decimal("1.50"), "1.50")]
)
def test_mine_writes_dates_and_decimals_as_text(table, tmp_path, value, written):
    run_command("mine", "--model", "model", *COMMANDS["mine"], table([value] * len(PAIRS)))
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["more"] for record in records] == [written] * len(PAIRS)


def test_what_json_lacks_is_an_error_before_the_model_is_read(table, monkeypatch):
    monkeypatch.setattr("polyencoder.cli.mine.load", lambda settings: pytest.fail("the model was loaded"))
    result = invoke("mine", "--model", "model", *COMMANDS["mine"], table([b"\xff"] * len(PAIRS)))
    assert result.exit_code == 1
    assert "pairs.parquet, row 1" in result.stderr
    assert "bytes" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_search_prints_ids_that_are_dates(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    (tmp_path / "replies.txt").write_text("\n".join(pair["response"] for pair in PAIRS))
    run_command("index", "--model", "model", "--candidates", "replies.txt", "--out", "index")
    day = datetime.date(2026, 11, 28)
    parquet.write_table(arrow.table({"id": [day], "context": ["hi"]}), tmp_path / "q.parquet")
    search = ["search", "--model", "model", "--index", "index", "--json", "--contexts", "q.parquet"]
    assert json.loads(run_command(*search).stdout)["id"] == str(day)
    parquet.write_table(arrow.table({"id": [b"1"], "context": ["hi"]}), tmp_path / "q.parquet")
    result = invoke(*search)
    assert result.exit_code == 1
    assert "q.parquet, row 1" in result.stderr
