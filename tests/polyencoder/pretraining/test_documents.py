"""Documents: what the columns of a record make it, how text files are cut, what is wrong with a line."""

from __future__ import annotations

import gzip
import json

import pytest

from polyencoder.data.readers import BadExamples
from polyencoder.errors import InputError
from polyencoder.pretraining import documents
from polyencoder.pretraining.documents import CorpusDocument, read_documents


@pytest.fixture
def read(tmp_path):
    """(records or text, name) -> the documents of a file with these."""

    def make(content, name="file.jsonl", **options) -> list[CorpusDocument]:
        path = tmp_path / name
        text = content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content)
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return list(read_documents(str(path), **options))

    return make


@pytest.mark.parametrize(
    ("record", "units", "kind", "responses"),
    [
        ({"turns": ["a b", " ", "c\nd"]}, ["a b", "c d"], "conversation", [1]),
        ({"turns": ["a", "b", "c"], "more": 1}, ["a", "b", "c"], "conversation", [1, 2]),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            ["a", "b"],
            "conversation",
            [1],
        ),
        ({"context": [{"role": "user", "content": "a\nb"}], "response": "c"}, ["a b", "c"], "pair", [1]),
        ({"turns": '["a", "b"]'}, ["a", "b"], "conversation", [1]),
        ({"messages": str([{"role": "user", "content": "a"}])}, ["a"], "conversation", []),
        ({"context": "['a', 'b']", "response": "[1]"}, ["a", "b", "[1]"], "pair", [2]),
        ({"turns": ["alone"]}, ["alone"], "conversation", []),
        (
            {"dialog": [[{"text": "a\nb"}, {"text": "c"}], [{"text": "d"}]]},
            ["a", "b", "c", "d"],
            "conversation",
            [1, 2, 3],
        ),
        ({"context": ["a", "b"], "response": "c"}, ["a", "b", "c"], "pair", [2]),
        ({"context": "b", "context/0": "a", "context/1": "0", "response": "c"}, ["0", "a", "b", "c"], "pair", [3]),
        ({"context": "", "response": "c"}, ["c"], "pair", []),
        (
            {"Context": "a __eou__ b __eou__ __eot__ c __eou__", "Utterance": "d __eou__"},
            ["a b", "c", "d"],
            "pair",
            [2],
        ),
        ({"Context": "a __eou__ __eot__", "Ground Truth Utterance": "b", "x": 1}, ["a", "b"], "pair", [1]),
        ({"messages-so-far": [{"utterance": "a"}, {"utterance": "b"}]}, ["a", "b"], "conversation", [1]),
        ({"sentences": ["One.", "Two."]}, ["One.", "Two."], "text", [1]),
        (
            {"text": 'He said "no." (She left!)  So?\u2019\n\u201cIt ended.\u201d \u2026 Yes'},
            ['He said "no."', "(She left!)", "So?\u2019", "\u201cIt ended.\u201d", "\u2026", "Yes"],
            "text",
            [1, 2, 3, 4, 5],
        ),
    ],
)
def test_what_a_record_is(read, record, units, kind, responses):
    (document,) = read([record])
    assert (list(document.units), document.kind, list(document.responses)) == (units, kind, responses)
    assert document.where.endswith("file.jsonl, line 1")


def test_a_context_is_the_turns_before_or_the_sentence_before():
    conversation = CorpusDocument("abcde", "", "conversation")
    assert conversation.get_context(4, history=2) == "cd"
    assert conversation.get_context(1, history=20) == "a"
    assert CorpusDocument("abcde", "", "text").get_context(4, history=20) == "d"


def test_text_files(read):
    text = "\n\none\ntwo\n\nthree\nfour\tfive\tsix\nseven\n\n"
    paragraphs = [(list(document.units), document.where.rpartition(" ")[2]) for document in read(text, "file.txt")]
    assert paragraphs == [(["one", "two"], "3"), (["three"], "6"), (["four", "five", "six"], "7"), (["seven"], "8")]
    assert [list(document.units) for document in read(text, "file.txt.gz")] == [units for units, _ in paragraphs]


def test_a_book_without_an_end_is_several_documents(read, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 3)
    units = [list(document.units) for document in read("".join(f"{n}\n" for n in range(6)), "book.txt")]
    assert units == [["0", "1", "2"], ["2", "3", "4"], ["4", "5"]]  # each pair of neighbours once


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"other": 1}', "has neither 'turns' nor"),
        ('{"turns": "a", "x": 2', "not JSON"),
        ('{"Context": "a", "Utterance": "b", "Label": "x"}', "the label is 'x', neither 0 nor 1"),
        ('{"Context": null, "Utterance": "b"}', "'Context' is None, not a text"),
        ('{"Context": "a", "Utterance": null}', "'Utterance' is None, not a text"),
        ('{"text": null}', "'text' is neither a text nor a list of texts"),
        ('{"context": "a", "response": null}', "'response' is neither a text nor a list of texts"),
        ('{"context": ["a", "b"], "response": " "}', "the response is empty"),
        ('{"messages-so-far": null}', "not a dialogue of DSTC7's subtask 1"),
        ('{"messages-so-far": [{"utterance": null}]}', "not a dialogue of DSTC7's subtask 1"),
        ('{"messages-so-far": ["a"]}', "not a dialogue of DSTC7's subtask 1"),
        ('{"messages": [{"role": "assistant", "content": null}]}', "'messages', message 0, content is None"),
        ('{"dialog": [[{"id": "a"}]]}', "'dialog' is neither a text nor a list of texts"),
        ('{"turns": [1, 2]}', "'turns' is neither a text nor a list of texts"),
        ('{"turns": ["\\ud83d", "b"]}', "half of"),
        ('["turns"]', "not a JSON object"),
    ],
)
def test_a_bad_line_is_an_error_or_counted(read, line, problem):
    good = '{"turns": ["a", "b"]}\n'
    with pytest.raises(InputError, match=rf"file.jsonl, line 2: (?s:.*){problem}"):
        read(f"{good}{line}\n{good}")
    bad = BadExamples(skip=True)
    assert len(read(f"{good}{line}\n{good}", bad=bad)) == 2
    assert bad.count == 1


def test_official_files(read):
    """Rows with a wrong response, or an empty one, are left out; of a dialogue the right answer is the last turn."""
    rows = 'Context,Utterance,Label\n"a __eou__ __eot__",b __eou__,1.0\n"a __eou__ __eot__",no __eou__,0.0\n'
    rows += '"a __eou__ __eot__", __eou__ ,1.0\n'
    assert [document.units for document in read(rows, "train.csv.gz")] == [["a", "b"]]
    messages = [{"speaker": "participant_1", "utterance": "a"}, {"speaker": "participant_2", "utterance": "b"}]
    dialogue = {"messages-so-far": messages, "options-for-correct-answers": [{"candidate-id": "1", "utterance": "c"}]}
    assert [document.units for document in read(json.dumps([dialogue] * 2), "train.json")] == [["a", "b", "c"]] * 2


def test_equal_documents_are_held_out_together():
    pairs = [CorpusDocument(["hi", str(n), "x"], "", "pair") for n in range(20)]
    assert len({document.is_held_out(0.3) for document in pairs}) == 1  # turns of one conversation
    talks = [CorpusDocument(["hi", str(n), "x"], "", "conversation") for n in range(2000)]
    assert 500 < sum(document.is_held_out(0.3) for document in talks) < 700
    assert not any(document.is_held_out(0.0) for document in talks)
    assert all(document.is_held_out(1.0) for document in talks)


@pytest.mark.slow
def test_the_real_files(data_path):
    for name, kind in {
        "conversations/taskmaster4.jsonl.gz": "conversation",
        "reddit_sample/sample-00000-of-00001.json": "pair",
        "wiki_article_search/wikipedia_valid.txt.gz": "text",
        "dstc7/ubuntu_dev_subtask_1.json.gz": "conversation",
        "Ubuntu/valid.csv": "pair",
    }.items():
        documents_read = list(read_documents(str(data_path / name)))
        assert len(documents_read) in (3_710, 1_000), name
        assert {document.kind for document in documents_read} == {kind}
        assert sum(len(document.responses) > 0 for document in documents_read) > 0.99 * len(documents_read)
