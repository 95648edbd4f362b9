from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest

from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.index.candidates import CandidateColumns, candidates_from
from polyencoder.index.entries import Candidate


def drop_location(candidates) -> list[tuple]:
    return [candidate[:3] for candidate in candidates]


def list_metadata(path) -> list[dict | None]:
    return [candidate.metadata for candidate in candidates_from(path)]


def test_text_lines(tmp_path):
    path = tmp_path / "candidates.txt"
    path.write_text("hello\n\n  \nhow are you ?\n", encoding="utf-8")
    assert list(candidates_from(path)) == [
        Candidate(None, "hello", None, f"{path}, line 1"),
        Candidate(None, "how are you ?", None, f"{path}, line 4"),
    ]


RECORDS = [
    {"id": "a", "text": "hello", "lang": "en"},
    {"text": "hallo", "lang": "de"},
    {"id": 7, "text": "bye", "lang": "en"},
]
EXPECTED = [("a", "hello", {"lang": "en"}), (None, "hallo", {"lang": "de"}), ("7", "bye", {"lang": "en"})]


def test_json_lines(tmp_path):
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, RECORDS)))
    assert drop_location(candidates_from(tmp_path / "c.jsonl")) == EXPECTED
    assert drop_location(candidates_from(f"{tmp_path}/c.js*")) == EXPECTED * 2


def test_the_corpus_of_a_beir_folder(tmp_path):
    """`_id` is the id, and the title begins the text, which may be long, or be the title alone."""
    path = tmp_path / "corpus.jsonl"
    records = [
        {"_id": "7", "title": "Ants", "text": "They dig.", "metadata": {"url": "x"}},
        {"_id": "8", "title": "", "text": "y" * 30_000},
        {"_id": 9, "title": "Alone", "text": ""},
        {"_id": "10", "id": "own", "title": "Kept", "text": "hi"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    assert drop_location(candidates_from(path)) == [
        ("7", "Ants They dig.", {"url": "x"}),
        ("8", "y" * 30_000, None),
        ("9", "Alone", None),
        ("own", "hi", {"_id": "10", "title": "Kept"}),
    ]


def test_an_object_of_metadata_is_the_metadata(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"text": "hi", "id": "a", "topic": "x", "metadata": {"lang": "en"}}\n{"text": "ho", "metadata": "y"}\n'
    )
    assert list_metadata(path) == [{"topic": "x", "lang": "en"}, {"metadata": "y"}]
    path.write_text(
        '{"text": "hi", "metadata": null}\n{"text": "ho", "lang": "en", "metadata": {"lang": "en"}}\n'
        '{"text": "hu", "lang": "de", "metadata": {"lang": "en"}}\n'
    )
    records = candidates_from(path)
    assert [next(records).metadata, next(records).metadata] == [None, {"lang": "en"}], "null is none, as in a request"
    with pytest.raises(InputError, match=r"line 3: has 'lang' twice, in `metadata` and beside it"):
        next(records)


def test_an_empty_cell_of_parquet_is_no_field(tmp_path):
    """CSV has the same rule; JSON lines keep a null, which somebody wrote."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = [{"text": "a", "doc": "d", "n": None, "metadata": {"x": 1, "y": None}}, {"text": "b", "doc": "", "n": 1}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert list_metadata(tmp_path / "c.parquet") == [{"doc": "d", "x": 1}, {"n": 1}]
    (tmp_path / "c.jsonl").write_text('{"text": "a", "doc": null}')
    assert list_metadata(tmp_path / "c.jsonl") == [{"doc": None}]


def test_an_empty_cell_of_a_table_is_no_value(tmp_path):
    """An id is then derived, and the candidates without a document are no group of their own."""
    (tmp_path / "c.tsv").write_text("text\tid\tdocument\nhello\t\td1\nhi\tb\t\n")
    assert drop_location(candidates_from(tmp_path / "c.tsv")) == [
        (None, "hello", {"document": "d1"}),
        ("b", "hi", None),
    ]


def test_the_metadata_of_a_table_may_be_json(tmp_path):
    """Files of vectors have the same rule, and so have tables that Ray or Spark read."""
    (tmp_path / "c.csv").write_text('text,metadata\nhello,"{""lang"": ""en""}"\nhi,\nbye,plain\n')
    expected = [(None, "hello", {"lang": "en"}), (None, "hi", None), (None, "bye", {"metadata": "plain"})]
    assert drop_location(candidates_from(tmp_path / "c.csv")) == expected


@pytest.mark.parametrize("cell", ["2024", "NaN", "null", "[1]", "[" * 100_000])
def test_the_metadata_of_a_table_that_is_no_object_is_a_text(tmp_path, cell):
    """Numbers would not be found by the text, nan cannot be kept, and deep lists end json's recursion."""
    (tmp_path / "c.csv").write_text(f"text,metadata\nhello,{cell}\n")
    assert drop_location(candidates_from(tmp_path / "c.csv")) == [(None, "hello", {"metadata": cell})]


def test_a_file_of_vectors_is_no_file_of_candidates(tmp_path):
    """The numbers became metadata, and the texts were encoded again."""
    (tmp_path / "c.jsonl").write_text('{"text": "left", "vector": "left"}\n{"text": "a", "vector": [0.5, 1]}\n')
    candidates = candidates_from(tmp_path / "c.jsonl")
    assert next(candidates).metadata == {"vector": "left"}
    with pytest.raises(InputError, match="c.jsonl, line 2: has a vector: give the file as vectors"):
        next(candidates)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"reply": "a"}, "line 2: has no 'text'; it has 'reply'. Name the column with the text"),
        ({"text": " "}, "line 2: no text in the field `text`"),
        ({"text": 5}, "line 2: no text in the field `text`"),
        ({"text": "x" * 100_000}, "line 2: a text of 100,000 characters, more than 20,000"),
        ({"text": "x", "id": 1.5}, "line 2: the id 1.5 is neither"),
        ({"text": "x", "id": True}, "line 2: the id True is neither"),
        ({"text": "x", "id": ""}, "line 2: the id '' is neither"),
        (
            {"text": "x", "n": float("nan")},
            "line 2: its metadata n is nan; nan and infinity cannot be kept, leave it out",
        ),
        ({"text": "x", "n": [-float("inf")]}, "line 2: its metadata n.0 is -inf; nan and infinity cannot be kept"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, record, message):
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join([json.dumps({"text": "fine"}), json.dumps(record), json.dumps({"text": "fine too"})]))
    with pytest.raises(InputError, match=message):
        list(candidates_from(path))
    bad = BadExamples(skip=True)
    assert [candidate.text for candidate in candidates_from(path, bad=bad)] == ["fine", "fine too"]
    assert bad.count == 1


def test_columns_of_other_names(tmp_path):
    """The file of questions and answers that trains a ranker is indexed, too."""
    (tmp_path / "c.csv").write_text("answer;nr;topic;question\nat ten;7;Hours;when ?\nyes;;;open ?\n")
    columns = CandidateColumns(text="answer", id="nr", title="topic")
    assert drop_location(candidates_from(tmp_path / "c.csv", columns=columns)) == [
        ("7", "Hours at ten", {"question": "when ?"}),
        (None, "yes", {"question": "open ?"}),
    ]
    for part in ("text", "id", "title"):
        with pytest.raises(InputError, match=rf"c\.csv, line 2: has no 'x'; .* the {part}") as raised:
            list(candidates_from(tmp_path / "c.csv", columns=replace(columns, **{part: "x"})))
        assert raised.value.argument == part


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"context": "c", "response": "a", "candidates": ["b", "a"]}, ["a", "b"]),
        ({"query": "q", "pos": ["a", "b"], "neg": ["c"]}, ["a", "b", "c"]),
        ({"turns": ["hi", "a", "b", "a"]}, ["a", "b"]),
        ({"question": "q", "answer": "a", "text": "b"}, ["b"]),
    ],
)
def test_records_for_training(tmp_path, record, texts):
    (tmp_path / "c.jsonl").write_text(json.dumps(record))
    candidates = list(candidates_from(tmp_path / "c.jsonl"))
    assert [candidate.text for candidate in candidates] == texts
    assert all(candidate.where.endswith("c.jsonl, line 1") and candidate.id is None for candidate in candidates)


def test_a_record_for_training_that_cannot_be_used(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"query": "q", "pos": ["a", 5]}\n{"query": "q", "pos": ["b"]}\n')
    with pytest.raises(InputError, match=r"c\.jsonl, line 1: the responses"):
        list(candidates_from(tmp_path / "c.jsonl"))
    assert [candidate.text for candidate in candidates_from(tmp_path / "c.jsonl", bad=BadExamples(skip=True))] == ["b"]
