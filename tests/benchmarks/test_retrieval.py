"""The benchmark of article search in miniature."""

from __future__ import annotations

import pytest

from benchmarks.retrieval import make_folder, measure
from polyencoder.data.trec import read_qrels, read_run

pytest.importorskip("bm25s")
pytest.importorskip("ir_measures")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]


def test_a_sentence_finds_its_article(minilm_folder, tmp_path):
    data = tmp_path / "wiki_article_search"
    data.mkdir()
    animals = ["otters", "herons", "beavers", "badgers", "lynxes", "cranes"]
    for part, some in (("test", animals[:4]), ("valid", animals[4:])):
        articles = [[f"About {it}", f"{it} live here.", f"I saw {it} there.", f"{it} sleep a lot."] for it in some]
        text = "".join("\t".join(sentences) + "\n" for sentences in [*articles, ["too", "short"]])
        (data / f"wikipedia_{part}.txt").write_text(text)
    make_folder(tmp_path, tmp_path / "beir", most=None)
    assert read_qrels(tmp_path / "beir/qrels/test.tsv") == {f"q{n}": {f"test{n}": 1} for n in range(4)}
    assert not any(word in (tmp_path / "beir/corpus.jsonl").read_text() for word in ("too", "short"))
    encoder, bm25 = measure(str(minilm_folder), tmp_path / "beir")
    assert (encoder["documents"], encoder["queries"]) == (6, 4)
    assert encoder["nDCG@10"] > 0.9
    assert bm25["nDCG@10"] > 0.9
    assert set(read_run(tmp_path / "beir/bm25.trec")) == {"q0", "q1", "q2", "q3"}
