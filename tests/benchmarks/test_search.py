"""The search benchmark in miniature: what each case counts, and what the summary takes from it."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch

from benchmarks.search import engines, indexed, memory, peers, scanning, systems, tokens
from benchmarks.search.__main__ import main, summarize
from benchmarks.search.texts import iter_numbered, make_candidates, make_contexts, read_candidates, read_contexts
from benchmarks.search.vectors import draw, draw_contexts, grow, store
from polyencoder.ranker import Ranker
from polyencoder.scoring import ContextEncoding

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

SYSTEMS = [
    *("bi-encoder", "poly-16", "poly-64", "poly-360", "first-16", "first-64", "first-360"),
    *("bi-encoder, bf16", "poly-64, bf16", "first-64, bf16", "poly-360, bf16"),
    *("ParlAI's formula, poly-64", "ParlAI's formula, poly-64, bf16"),
]
TRAINED = [f"{n} dogs ." for n in range(25)]  # enough for ParlAI's dictionary to draw 20 candidates of


@pytest.fixture
def datapath(tmp_path) -> Path:
    """ConvAI2, Ubuntu and DailyDialog, a few lines of each."""
    for folder in ("ConvAI2", "Ubuntu", "dailydialog"):
        (tmp_path / folder).mkdir()
    lines = ["1 your persona: i ski .", "2 hi !\thello .", "3 any pets ?\ttwo dogs .\t\ttwo dogs .|a cat ."]
    (tmp_path / "ConvAI2/valid_self_original.txt").write_text("\n".join([*lines, "1 how are you ?\tfine ."]))
    labels = [f"{n} ?\t{label}" for n, label in enumerate(TRAINED, start=1)]
    (tmp_path / "ConvAI2/train_self_original_no_cands.txt").write_text("\n".join(f"1 how many ? {x}" for x in labels))
    with open(tmp_path / "Ubuntu/train.csv", "w", newline="") as file:
        right, wrong = ["hi __eou__ __eot__", "try apt __eou__", "1.0"], ["hi __eou__ __eot__", "no __eou__", "0.0"]
        csv.writer(file).writerows([["Context", "Utterance", "Label"], right, wrong])
    with gzip.open(tmp_path / "dailydialog/dialogues.jsonl.gz", "wt") as file:
        file.write(json.dumps({"split": "train", "turns": ["a beer ?", "gladly .", "2 dogs ."]}))
    return tmp_path


@pytest.fixture
def ranker(backbone_folder) -> Ranker:
    """A small BERT as a poly-encoder of four codes."""
    text = {"text_truncate": 30, "label_truncate": 10}
    return Ranker.from_backbone(backbone_folder("bert"), "poly", device="cpu", reduction="mean", n_codes=4, text=text)


def test_texts_are_the_labels(datapath):
    assert sorted(read_candidates(datapath)) == sorted([*TRAINED, "gladly .", "try apt"])
    assert len(read_candidates(datapath, 2)) == 2
    contexts = read_contexts(datapath, 10)
    assert sorted(contexts) == [
        ["how are you ?"],
        ["your persona: i ski .", "hi !"],
        ["your persona: i ski .", "hi !", "hello .", "any pets ?"],
    ]
    assert len(read_contexts(datapath, 1)) == 1


def test_token_vectors(backbone_folder, tmp_path):
    text = {"text_truncate": 30, "label_truncate": 10}
    late = Ranker.from_backbone(backbone_folder("bert"), "late", device="cpu", reduction="mean", text=text)
    texts = [*dict.fromkeys(make_candidates(40))]
    row = tokens.measure(late, texts, make_contexts(3), tmp_path)[0]  # the other is of a package that may be missing
    assert (row["system"], row["rows"], row["contexts"], row["recall10"]) == ("late-interaction", len(texts), 3, 1.0)
    assert 0 < row["encoding_ms"] < row["ms"]
    assert row["size_mb"] > 40 * 16 / 1e6
    with pytest.raises(SystemExit):
        main(["--cases", "tokens"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"has no ConvAI2/valid_.*--datapath is ParlAI's data folder"):
        read_contexts(tmp_path, 1)


def test_grown_vectors_begin_with_the_real_ones_and_keep_their_lengths():
    torch.manual_seed(0)
    real = torch.nn.functional.normalize(torch.randn(20, 6), dim=1) * 3
    rows = torch.cat(list(grow(real, 50)))
    assert rows.shape == (50, 6)
    assert torch.equal(rows[:20], real)
    torch.testing.assert_close(rows.norm(dim=1), torch.full((50,), 3.0))
    assert (torch.cdist(rows[20:], real).amin(dim=1) < 1.2).all()


def test_scan(tmp_path):
    torch.manual_seed(0)
    vectors = store(tmp_path / "vectors", draw(300, dim=8))
    rows = scanning.measure(vectors, lambda codes: draw_contexts(vectors, 3, codes=codes), codes=4, repeats=1)
    assert {row["codes"] for row in rows} == {1, 4}
    row_of = {(row["kind"], row["codes"]): row for row in rows}
    for name in ("torch", "scan", "scan_float32"):
        for codes in (1, 4):
            assert row_of[name, codes]["differ"] == 0
            assert row_of[name, codes]["processor_ms"] > 0


def test_indexed(tmp_path, monkeypatch):
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")
    monkeypatch.setattr(indexed, "TRIED", {"hnsw": [(4, 4), (300, 300)], "ivf-flat": [(300, 300)]})
    torch.manual_seed(0)
    vectors = store(tmp_path / "vectors", draw(300, dim=8))
    contexts = draw_contexts(vectors, 4, codes=3)
    rows = indexed.measure(vectors, contexts, tmp_path / "small", kinds=["hnsw", "ivf-flat"], scanned=2, repeats=1)
    row_of = {(row["kind"], row.get("list_length")): row for row in rows}
    assert [row["rows"] for row in rows] == [300] * 9
    assert {name for name, _ in row_of} == {
        *("torch", "scan", "scan_int8", "maxsim-max", "maxsim-sum", "hnsw", "ivf-flat", "certified")
    }
    for name in ("torch", "scan"):
        assert row_of[name, None]["recall10"] == 1
    for kind in ("hnsw", "ivf-flat"):
        assert row_of[kind, 300]["recall10"] == 1
        assert row_of[kind, 300]["contexts"] == 4
        assert row_of[kind, 300]["build_s"] > 0
    assert row_of["certified", indexed.LONGEST_LIST]["share"] == 1  # all rows are in the lists
    assert row_of["scan_int8", None]["size_mb"] < row_of["scan", None]["size_mb"] / 2
    summary = summarize(rows)
    fastest = max((row_of["hnsw", 300], row_of["ivf-flat", 300]), key=lambda row: row["vs_scan"])
    if row_of["hnsw", 4]["recall10"] < indexed.MIN_RECALL:
        assert summary["ann_1m_speedup"] == fastest["vs_scan"]
    assert (summary["ann_1m_recall10"], summary["certified_share"]) == (1, 1)
    assert summary["index_1m_peak_mb"] is None


@pytest.mark.parametrize(
    ("flags", "rows", "note"),
    [
        (["--rows", "300"], 300, "the summary's ann_1m, index_1m and bi_1m are of 300 rows"),
        (["--quick"], 100_000, "the summary's ann_1m, index_1m and bi_1m are of 100,000 rows"),
        ([], 1_000_000, None),
    ],
)
def test_the_report_says_what_sizes_were_measured(monkeypatch, capsys, flags, rows, note):
    monkeypatch.setattr("benchmarks.search.encoding.measure", lambda ranker, texts, repeats: [])
    monkeypatch.setattr("benchmarks.search.__main__.read_candidates", lambda *args: [])
    monkeypatch.setattr("benchmarks.search.__main__._load_ranker", lambda flags: None)
    main(["--cases", "encoding", "--json", *flags])
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["rows"], settings["note"]) == (rows, note)


def test_where_no_index_finds_enough_the_best_is_taken():
    rows = [{"kind": "hnsw", "recall10": recall, "vs_scan": 1 / recall} for recall in (0.5, 0.9)]
    assert indexed.select_fastest(rows) == rows[1]
    assert indexed.select_fastest([]) is None


def test_memory(tmp_path, datapath, ranker):
    texts, contexts = read_candidates(datapath), read_contexts(datapath, 2)
    before = ranker.model.config
    rows = memory.measure(ranker, texts, contexts, tmp_path, rows=23, threads=1)
    assert [row["work"] for row in rows] == ["index", "search"]
    assert all(row["peak_mb"] >= row["before_mb"] > 50 and row["rows"] == 23 for row in rows)
    assert len((tmp_path / "candidates.txt").read_text().splitlines()) == 23
    assert summarize(rows)["index_1m_peak_mb"] == rows[0]["peak_mb"]
    assert 0 < rows[0]["texts_mb"] < rows[0]["database_mb"] < rows[0]["database_with_words_mb"]
    assert ranker.model.config == before


def test_encoding(datapath, ranker):
    pytest.importorskip("sentence_transformers")
    from benchmarks.search import encoding

    rows = encoding.measure(ranker, read_candidates(datapath), repeats=1)
    assert [row["candidates"] for row in rows] == [27] * 3
    assert rows[0]["ours_vs_this"] == 1
    assert summarize(rows)["encode_vs_sentence_transformers"] == min(row["ours_vs_this"] for row in rows[1:])


def test_answering(datapath, tmp_path, monkeypatch):
    pytest.importorskip("parlai")
    from parlai.utils import logging

    from benchmarks.search import answering

    monkeypatch.setattr(logging.logger, "level", logging.logger.level)
    texts, contexts = read_candidates(datapath), read_contexts(datapath, 3)
    rows = answering.measure(
        datapath, texts, contexts, tmp_path, size_of={"layers": 1, "dim": 16, "heads": 2}, counts=(10, 40), cross=(1, 4)
    )
    ours = [row["system"] for row in rows if row["candidates"] == 40]
    assert ours == [*SYSTEMS, "ParlAI's poly-64"] == [row["system"] for row in rows if row["candidates"] == 10]
    assert [(row["system"], row["candidates"]) for row in rows[2 * len(ours) :]] == [("cross-encoder", 4)]
    assert all(0 <= row["after_encoding_ms"] <= row["median_ms"] for row in rows)
    assert [row["replies_as_parlai"] for row in rows if row["system"] == "poly-64"] == [1, 1]
    times = {row["system"]: row["median_ms"] for row in rows if row["candidates"] == 40}
    assert summarize(rows)["poly64_100k_vs_parlai"] == times["ParlAI's poly-64"] / times["poly-64"]


def test_answering_with_torch_and_transformers_alone(monkeypatch, capsys):
    """A machine with a GPU may have nothing else: no ParlAI, no data, no MiniLM."""
    from benchmarks.search import answering

    monkeypatch.setitem(sys.modules, "parlai", None)
    monkeypatch.setattr(
        answering, "measure", partial(answering.measure, size_of={"layers": 1, "dim": 16, "heads": 2}, counts=(10, 40))
    )
    main(["--cases", "answering", "--made-texts", "--quick", "--contexts", "30", "--datapath", "nowhere", "--json"])
    report = json.loads(capsys.readouterr().out)
    rows = report["rows"]
    assert [row["system"] for row in rows] == [*SYSTEMS, *SYSTEMS, "cross-encoder"]
    assert [row["replies_as_parlai"] for row in rows if row["system"] == "poly-64"] == [1, 1]  # as its formula finds
    assert "made" in report["settings"]["texts"]
    assert report["summary"]["poly64_100k_vs_parlai"] is None
    assert report["summary"]["poly64_100k_scoring_vs_formula"] > 0


@pytest.mark.long
def test_peers(datapath, bert, monkeypatch, capsys):
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(peers, "COUNTS", (10, 1_000))
    one_turn = [["any pets ?"], ["hi !"], ["how are you ?"]]  # this tokenizer knows lines, which MiniLM's does not
    monkeypatch.setattr("benchmarks.search.__main__.read_contexts", lambda *args: one_turn)
    words = ["--datapath", str(datapath), "--backbone", str(bert), "--rows", "40", "--contexts", "3", "--threads", "1"]
    main(["--cases", "peers", *words, "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    timed = [(row["system"], row["candidates"]) for row in rows if "median_ms" in row]
    searching = ["bi-encoder", "poly-64", "late-interaction", "SentenceTransformer"]
    crossing = ["cross-encoder", "CrossEncoder"]
    assert timed == [(name, n) for n in (10, 40) for name in searching] + [(name, 10) for name in crossing]
    assert [row["replies_as_peer"] for row in rows if row["system"] == "bi-encoder" and "median_ms" in row] == [1, 1]
    times = {row["system"]: row["median_ms"] for row in rows if "median_ms" in row}
    inferred = {row["system"]: row["inferred_ms"] for row in rows if "inferred_ms" in row}
    assert inferred == {name: 4 * times[name] for name in crossing}
    memory = {row["system"]: row for row in rows if "peak_mb" in row}
    assert list(memory) == searching + crossing
    assert all(row["peak_mb"] > row["mapped_mb"] > 0 for row in memory.values())
    assert [row["vectors_mb"] > 0 for row in memory.values()] == [True, True, True, True, False, False]
    assert summarize(rows)["bi_1m_vs_sentence_transformers"] == times["SentenceTransformer"] / times["bi-encoder"]
    main(["--cases", "peers", *words, "--systems", "late-interaction", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["system"] for row in rows} == {"late-interaction"}
    assert all(row["processor_ms"] > 0 for row in rows if "median_ms" in row)


def test_numbered_texts_are_different():
    numbered = ["two", "two 1", "three", "two 1 1", "three 1", "two 2", "two 1 2"]
    assert list(iter_numbered(["two", "two 1", "three"], 7)) == numbered
    endless = islice(iter_numbered(["hi !", "bye ."]), 6)
    assert list(endless) == ["hi !", "bye .", "hi ! 1", "bye . 1", "hi ! 2", "bye . 2"]


def test_parlais_formula_is_parlais():
    pytest.importorskip("parlai")
    from parlai.agents.transformer.polyencoder import PolyBasicAttention

    torch.manual_seed(0)
    context, candidates = ContextEncoding(torch.randn(1, 5, 8)), torch.randn(30, 8)
    attention = PolyBasicAttention("codes", 5, dim=2, attn="basic", get_weights=False)
    attended = attention(candidates.unsqueeze(0), context.vectors, mask_ys=torch.ones(1, 5), values=context.vectors)
    scores = (attended * candidates).sum(2)
    assert systems.score_by_formula(context, candidates).tolist() == scores.argsort(1, descending=True).tolist()


def test_a_cross_encoder_in_bfloat16():
    ranker = systems.make_ranker(make_candidates(50), {"layers": 1, "dim": 16, "heads": 2}, device="cpu")
    reply, _ = systems.build_cross(ranker, make_candidates(3), bf16=True)(make_contexts(1)[0])
    assert reply in make_candidates(3)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--device", "cuda"], "are for --cases answering alone"),
        (["--cases", "answering", "memory", "--made-texts"], "are for --cases answering alone"),
        (["--kinds", "flat"], "the kind of FAISS index is 'flat'"),
        (["--kinds", "hnsw,n=4"], "a hnsw index has no parameter 'n'"),
        (["--cases", "answering", "--device", "cuda"], "torch sees no CUDA device here"),
    ],
)
def test_flags_that_do_not_go_together(monkeypatch, capsys, flags, error):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        main(flags)
    assert error in capsys.readouterr().err


@pytest.mark.long
def test_engines_find_what_the_scan_finds(postgres, tmp_path):
    vectors = store(tmp_path / "float32", draw(400, dim=16))
    contexts = draw_contexts(vectors, 4, codes=3)
    rows = engines.measure(
        vectors, contexts, tmp_path, engines=["folder", "postgres"], postgres=postgres.address, repeats=1
    )
    kinds = [(engine, kind) for engine in ("folder", "postgres") for kind in ("flat", "hnsw")]
    assert [(row["engine"], row["kind"]) for row in rows[::3]] == kinds
    assert all(row["same"] == 1 for row in rows if row["exactness"] != "approximate")
    assert all(row["recall10"] > 0.5 for row in rows)
