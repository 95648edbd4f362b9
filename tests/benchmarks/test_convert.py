"""The benchmark of ConveRT runs, and reports sizes, ratios and shares of what the machine can multiply."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import convert
from benchmarks.rate import Shape, encoded, encoder_flops, products
from polyencoder.modeling.convert import ConvertConfig

pytestmark = pytest.mark.slow

TINY = {
    "vocab_size": 9_000,
    "hidden_size": 16,
    "attention_limits": (2, 8),
    "intermediate_size": 32,
    "head_sizes": (24,),
}


def test_report(monkeypatch, capsys, backbone_folder):
    for package in ("sentence_transformers", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.setattr(convert, "SIZES", TINY)
    monkeypatch.setattr(convert, "VOCABULARY_SENTENCES", 200)
    monkeypatch.setattr(convert, "LENGTH", 40)  # of the tiny encoder
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "ffn_dim": 32, "n_positions": 80}
    monkeypatch.setattr(convert, "BERT_BASE", sizes)
    convert.main(["--json", "--quick", "--backbone", str(backbone_folder("bert"))])
    report = json.loads(capsys.readouterr().out)
    summary = report["summary"]
    assert {"single_mb", "multi_mb", "load_seconds", "encode_vs_minilm", "encode_vs_bert_base"} <= summary.keys()
    assert 0 < summary["single_mb"] < summary["multi_mb"] < 1
    assert all(value > 0 for value in summary.values())
    whats = [(row["what"], row["dtype"]) for row in report["rows"]]
    assert len(whats) == len(set(whats)) == 10
    assert all(row["sentences_per_second"] > 0 for row in report["rows"])
    shares = [row["what"] for row in report["rows"] if row.get("share_of_product_rate", 0) > 0]
    assert shares == ["convert", "convert_quantized", "minilm", "bert_base", "learning"]


def test_the_papers_multiplications(make_convert_ranker):
    """13.4 million a token, as the parameters of its blocks; and 4 million more a text."""
    config = dataclasses.asdict(ConvertConfig(vocab_size=9))
    layer = products(config, tokens=1)
    assert layer == [Shape(1, 512, 192), Shape(1, 64, 512), Shape(1, 512, 2048), Shape(1, 2048, 512)]
    blocks = 6 * sum(shape.flops for shape in layer)
    assert blocks / 2 == pytest.approx(13.4e6, rel=0.01)
    reduction, attention = 2 * (512 * 256 + 128), 6 * 4 * 64
    head = 2 * (3 * 1024 * 1024 + 2 * 1024 * 512)
    assert encoder_flops(config, [1]) == blocks + reduction + attention + head

    ranker = make_convert_ranker()
    with encoded(ranker.model) as seen:
        ranker.encode_candidates(["two dogs", "hello"])
    assert sorted(seen.calls[0][1]) == sorted(map(len, ranker.text.candidate_ids(["two dogs", "hello"])))
