"""Qrels as training data: the examples of a folder of BEIR's layout, and ids that lead nowhere."""

from __future__ import annotations

import gzip
import json

import pytest

from polyencoder.data.example import Example
from polyencoder.data.pairs import read_pairs, read_pairs_and_records
from polyencoder.data.readers import BadExamples, open_bytes
from polyencoder.errors import InputError

DOCUMENTS = [
    {"_id": "d1", "title": "Dogs", "text": "bark ."},
    {"_id": "d2", "title": "", "text": "cats purr ."},
    {"_id": "d3", "text": "cows moo ."},
    {"_id": "d4", "text": "cats purr ."},
]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\nq1\td3\t0\nq2\td4\t2\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(document) + "\n" for document in DOCUMENTS)
    queries = [{"_id": "q1", "text": "who barks ?"}, {"_id": "q2", "text": "who purrs ?"}]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (tmp_path / "qrels" / "train.tsv").write_text(QRELS)
    return tmp_path


def test_each_judged_query_is_an_example(folder):
    path = str(folder / "qrels" / "train.tsv")
    graded, several = read_pairs_and_records(path)
    example, record = graded
    assert example == Example(["who barks ?"], "Dogs bark .", ["Dogs bark .", "cows moo ."])
    assert record == {"context": ["who barks ?"], "candidates": ["Dogs bark .", "cows moo ."], "labels": [1.0, 0.0]}
    assert (several[0].candidates, dict(several[0].labels)) == (None, {"cats purr .": 2.0})  # two documents of one text
    with open_bytes(path) as file:
        assert [*read_pairs(file)] == [graded[0], several[0]]


def test_trecs_formats(folder):
    (folder / "queries.jsonl").unlink()
    (folder / "queries.tsv").write_text("q1\twho barks ?\nq2\twho purrs ?\n")
    (folder / "qrels" / "dev.txt").write_text("q2 0 d2 1\nq2 0 d1 0\n")
    (example,) = read_pairs(str(folder / "qrels" / "dev.txt"))
    assert (example.label, example.candidates) == ("cats purr .", ["cats purr .", "Dogs bark ."])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("q3\td1\t1", "train.tsv, line 6: the query 'q3' is not among the queries"),
        ("q1\td9\t1", "train.tsv, line 2: the document 'd9' of the query 'q1' has no text in .*corpus.jsonl.gz"),
        ("q3\td1\t0", "line 6: "),
        ("q1\td1\t2", "line 6: judges the document 'd1' for the query 'q1' a second time"),
        ("q1\td2\t0.5", "line 6: the label is '0.5'; it must be a whole number"),
    ],
)
def test_what_leads_nowhere_is_named(folder, line, problem):
    path = folder / "qrels" / "train.tsv"
    path.write_text(QRELS + line + "\n")
    with pytest.raises(InputError, match=problem):
        [*read_pairs(str(path))]


def test_a_query_without_an_answer_can_be_skipped(folder):
    path = folder / "qrels" / "train.tsv"
    path.write_text(QRELS.replace("d1\t1", "d1\t0"))
    with pytest.raises(InputError, match="train.tsv, line 2: all labels are 0: no candidate is right"):
        [*read_pairs(str(path))]
    bad = BadExamples(skip=True)
    assert [pair.turns for pair in read_pairs(str(path), bad=bad)] == [["who purrs ?"]]
    assert bad.count == 1
    (folder / "queries.jsonl").unlink()
    with pytest.raises(InputError, match="has no queries.jsonl or queries.tsv"):
        [*read_pairs(str(path))]
