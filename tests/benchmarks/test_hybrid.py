"""The benchmark of hybrid search in miniature."""

from __future__ import annotations

import json

import pytest

from benchmarks.hybrid import main, measure, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

ANIMALS = ["otters", "herons", "beavers", "badgers", "lynxes", "cranes"]


@pytest.fixture
def datapath(tmp_path):
    """The three data sets, in which each query shares a word with its answer alone."""
    for folder in ("wiki_article_search", "dstc7", "dailydialog"):
        (tmp_path / folder).mkdir()
    for part in ("test", "valid", "train"):
        articles = [[f"About {it}", f"{it} live {part}.", f"I saw {it}.", f"{it} sleep."] for it in ANIMALS]
        text = "".join("\t".join(sentences) + "\n" for sentences in [*articles, ["too", "short"]])
        (tmp_path / f"wiki_article_search/wikipedia_{part}.txt").write_text(text)
    dialogues = [
        {
            "messages-so-far": [{"utterance": "hello"}, {"utterance": f"where are {it} ?"}],
            "options-for-correct-answers": [{"utterance": f"{it} are in the river"}],
            "options-for-next": [{"utterance": f"{it} are in the river"}, {"utterance": "no idea"}],
        }
        for it in ANIMALS
    ]
    (tmp_path / "dstc7/ubuntu_dev_subtask_1.json").write_text(json.dumps(dialogues))
    lines = [{"split": "test", "turns": ["hello", f"where are {it} ?", f"{it} are there"]} for it in ANIMALS]
    lines.append({"split": "train", "turns": ["how are you ?", "fine"]})
    (tmp_path / "dailydialog/dialogues.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "banking77").mkdir()
    for part in ("train", "test"):
        asked = ("who saw", "where are", "when sleep", "feed")
        rows = [f"{some} the {it} of {part} ?,{it}" for it in ANIMALS for some in asked]
        (tmp_path / f"banking77/{part}.csv").write_text("\n".join(["text,category", *rows, ""]))
    return tmp_path


@pytest.mark.parametrize("task", ["wiki", "dstc7", "dailydialog", "banking77"])
def test_every_system_finds_the_answer_that_shares_a_word(datapath, make_ranker, task):
    queries, texts = read(task, datapath, queries=4, candidates=7)
    assert len(queries) == 4
    assert {text for query in queries for text in query.right} <= {*texts}
    if task != "banking77":
        assert len(texts) == {"wiki": 7, "dstc7": 7, "dailydialog": 5}[task]
    queries = [*queries] * 5  # ten to fit a weight
    rows = measure(task, queries, texts, make_ranker("bi"), last=True)
    assert [row["system"] for row in rows] == ["words", "vectors", "rrf", "weight", "nearest list", "score"]
    assert [row["recall@100"] for row in rows[1:4]] == [1.0] * 3
    assert rows[5]["recall@100"] >= rows[4]["recall@100"]  # what words found is added
    if task != "banking77":
        assert rows[0]["nDCG@10"] > rows[1]["nDCG@10"]


@pytest.mark.parametrize("vectors", ["codes", "turns"])
def test_a_poly_encoder_of_the_backbone(datapath, bert, capsys, monkeypatch, vectors):
    made = []
    monkeypatch.setattr("benchmarks.hybrid.measure", lambda *args, **_: made.append(args[3].model.config) or [])
    main(["--datapath", str(datapath), "--backbone", str(bert), "--poly", vectors, "--tasks", "wiki", "--json"])
    assert [(one.architecture, one.context_vectors, one.n_codes) for one in made] == [("poly", vectors, 16)]
    assert json.loads(capsys.readouterr().out)["settings"]["poly"] == vectors


def test_the_time_of_searches_among_many_texts(datapath, capsys):
    (datapath / "ConvAI2").mkdir()
    (datapath / "Ubuntu").mkdir()
    (datapath / "ConvAI2/valid_self_original.txt").write_text("1 your persona: i ski .\n2 hi !\thello .\n")
    (datapath / "ConvAI2/train_self_original.txt").write_text("1 hi !\tgood day .\n")
    (datapath / "Ubuntu/train.csv").write_text("Context,Utterance,Label\nhi,try apt,1.0\n")
    main(["--datapath", str(datapath), "--tasks", "--rows", "90", "--quick", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    systems = [row["system"] for row in rows if row["query"] == "last turn"]
    assert systems[:5] == ["words", "bi, vectors", "bi, both", "poly, vectors", "poly, both"]
    assert systems[5:] == [f"{name}, ivf-flat" for name in systems[1:5]]
    assert systems == [row["system"] for row in rows if row["query"] == "whole dialogue"]
    assert {row["rows"] for row in rows} == {90}
    assert all(0 < row["ms"] <= row["ms_90%"] for row in rows)
