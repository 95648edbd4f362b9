"""Qrels and runs: what ir_measures reads, we read and write alike; and bad lines are named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.data.trec import read_qrels, read_run, write_run
from polyencoder.errors import InputError

IDS = st.text("abq01-_.\u00e9", min_size=1, max_size=4)
RUNS = st.dictionaries(
    IDS,
    st.dictionaries(IDS, st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=5),
    min_size=1,
    max_size=4,
)


@given(run=RUNS)
@settings(max_examples=30, deadline=None)
def test_a_run_comes_back_and_ir_measures_reads_the_same(tmp_path_factory, run):
    ir_measures = pytest.importorskip("ir_measures")
    path = tmp_path_factory.mktemp("run") / "run.trec"
    write_run(path, run)
    assert read_run(path) == run
    theirs: dict[str, dict[str, float]] = {}
    ranked_scores: dict[str, list[float]] = {}
    for query, document, score in ir_measures.read_trec_run(str(path)):
        theirs.setdefault(query, {})[document] = score
        ranked_scores.setdefault(query, []).append(score)
    assert theirs == run
    assert all(scores == sorted(scores, reverse=True) for scores in ranked_scores.values())


@pytest.mark.parametrize(
    "lines",
    [
        "q1 0 d1 2\n\nq1 0 d2 0\nq2\t0\td1\t1\n",  # TREC's, between any spaces
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td1\t1\n",  # BEIR's
        "q1\td1\t2\r\nq1\td2\t0\r\nq2\td1\t1",  # without a header, from another system
    ],
)
def test_qrels_of_trec_and_beir(tmp_path, lines):
    (tmp_path / "qrels").write_text(lines, newline="")
    assert read_qrels(tmp_path / "qrels") == {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": 1}}


@pytest.mark.parametrize(
    "lines", ["q 0 a 1.0\nq 0 b -1\nq 0 c -2\nq 0 d 0\n", "q\ta\t1.0\nq\tb\t-1.0\nq\tc\t-2\nq\td\t0\n"]
)
def test_a_negative_label_counts_as_not_relevant(tmp_path, lines, caplog):
    """TREC-COVID has -1, the web tracks -2, and a data frame writes 1 as 1.0."""
    (tmp_path / "qrels").write_text(lines)
    assert read_qrels(tmp_path / "qrels") == {"q": {"a": 1, "b": 0, "c": 0, "d": 0}}
    (message,) = caplog.messages
    assert "2 of 4" in message
    assert str(tmp_path / "qrels") in message


def test_ids_of_beir_may_have_spaces(tmp_path):
    (tmp_path / "qrels").write_text("query-id\tcorpus-id\tscore\nq 1\td 1\t1\n")
    assert read_qrels(tmp_path / "qrels") == {"q 1": {"d 1": 1}}
    for id_ in ("d 1", " d1", "d1\u2028"):
        with pytest.raises(InputError, match="the id '.*' cannot be written"):
            write_run(tmp_path / "run", {"q": {id_: 1.0}})
    with pytest.raises(InputError, match="score for the query 'q' that is not finite"):
        write_run(tmp_path / "run", {"q": {"d": float("nan")}})
    assert not (tmp_path / "run").exists()
    write_run(tmp_path / "run", {"q": {"d": np.float32(1.5)}})
    assert read_run(tmp_path / "run") == {"q": {"d": 1.5}}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("q 0 d 1\nq 0 e 1_0\n", "line 2: the label is '1_0'; it must be a whole number"),
        ("q 0 d nan\n", "line 1: the label is 'nan'"),
        ("q 0 d 0.5\n", "line 1: the label is '0.5'"),
        ("q 0 d 1\nq 0 d 1\n", "line 2: judges the document 'd' for the query 'q' a second time"),
        ("q 0 d 1\nq d 1\n", "line 2: has 3 columns"),
        ("q\td\t1\nq\te\n", "line 2: has 2 columns"),
        ("q 0 d 1 1\n", "line 1: has 5 columns"),
        ("q\td\t1\nq\te\t1\t1\n", "line 2: has 4 columns"),
        ("q1\td1\tone\n", "line 1: the label is 'one'"),  # no header
        ("\n", "is empty"),
        ("query-id\tcorpus-id\tscore\n", "is empty"),
    ],
)
def test_bad_judgements_are_named(tmp_path, lines, message):
    (tmp_path / "qrels").write_text(lines)
    with pytest.raises(InputError, match=message):
        read_qrels(tmp_path / "qrels")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("q Q0 d 1 0.5 x\nq Q0 d 2 0.4 x\n", "line 2: has the document 'd' for the query 'q' a second time"),
        ("q Q0 d 1 nan x\n", "line 1: the score is 'nan'; it must be a finite number"),
        ("q Q0 d 1 -inf x\n", "line 1: the score is '-inf'"),
        ("q Q0 d 1 1_0 x\n", "line 1: the score is '1_0'"),
        ("q Q0 d 1 high x\n", "line 1: the score is 'high'"),
        ("q 0 d 1\n", "line 1: has 4 columns, but a run has TREC's six"),
        ("", "is empty"),
    ],
)
def test_bad_results_are_named(tmp_path, lines, message):
    (tmp_path / "run").write_text(lines)
    with pytest.raises(InputError, match=message):
        read_run(tmp_path / "run")
