"""A ranker with its encoder's weights in bfloat16."""

from __future__ import annotations

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from polyencoder import Ranker
from polyencoder.errors import ConfigError, InputError
from polyencoder.export.onnx import export_onnx
from polyencoder.index.open import open_index
from polyencoder.modeling.loading import build_backbone
from polyencoder.training.trainer import Trainer
from tests.commands import invoke

pytestmark = pytest.mark.slow

TEXTS = ["two dogs play", "a man sleeps", "the dog runs home", "hello"]


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross", "late"])
def test_scores_are_nearly_those_of_float32_and_the_encoders_alone_are_rounded(make_ranker, tmp_path, architecture):
    make_ranker(architecture).save_pretrained(tmp_path)
    exact, rounded = Ranker.from_pretrained(tmp_path), Ranker.from_pretrained(tmp_path, dtype="bfloat16")
    contexts = [["hi there"], ["two dogs"]]
    theirs, ours = (torch.as_tensor(ranker.score(contexts, TEXTS)) for ranker in (exact, rounded))
    assert ours.dtype == torch.float32
    largest = float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03 * largest)
    assert not torch.equal(ours, theirs)
    for name, parameter in rounded.model.named_parameters():
        assert parameter.dtype == (torch.bfloat16 if "tower" in name else torch.float32), name
    exact.model.to(torch.bfloat16)  # by torch's own `to`: nothing of it is in float32 then
    torch.testing.assert_close(torch.as_tensor(exact.score(contexts, TEXTS)), theirs, rtol=0.05, atol=0.05 * largest)


def test_an_index_of_one_is_searched_by_the_other(make_ranker, tmp_path):
    make_ranker("poly").save_pretrained(tmp_path / "model")
    exact, rounded = (Ranker.from_pretrained(tmp_path / "model", dtype=dtype) for dtype in ("float32", "bfloat16"))
    for maker, searcher, name in ((exact, rounded, "a"), (rounded, exact, "b")):
        maker.index(TEXTS, tmp_path / name)
        hits = searcher.search(["two dogs"], open_index(tmp_path / name, searcher), top_k=4)
        assert {hit.text for hit in hits} == set(TEXTS)


def test_rounded_weights_are_not_saved_trained_or_exported(make_ranker, tmp_path):
    """Rounding would lose what was trained; graphs would not be the model of the fingerprint."""
    make_ranker("poly").save_pretrained(tmp_path / "model")
    ranker = Ranker.from_pretrained(tmp_path / "model", dtype="bfloat16")
    with pytest.raises(InputError, match="loaded in low precision"):
        ranker.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists() or not list((tmp_path / "again").iterdir())
    with pytest.raises(ConfigError, match="load the ranker without dtype to train it"):
        Trainer(ranker)
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'parlai-polyencoder[onnx]'")
    with pytest.raises(InputError, match="without dtype to export it"):
        export_onnx(ranker, tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()


def test_commands_take_it(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    common = ["--model", str(tmp_path / "model"), "--model-dtype"]
    indexing = ["index", "--candidates", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "index")]
    searching = ["search", "--index", str(tmp_path / "index"), "--context", "two dogs", "--json"]
    for arguments in (indexing, searching):
        done = invoke(*arguments, *common, "bfloat16")
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.strip().splitlines()[-1])
    failed = invoke(*searching, *common, "bf16")
    assert failed.exit_code != 0
    assert "model_dtype is 'bf16'; it must be one of float32" in failed.stderr


def test_packing_is_tried_by_one_thread_at_a_time(make_backbone_config):
    """It is tried in float32: weights that another thread casts back meanwhile would decide that it cannot be."""
    torch.manual_seed(0)
    whole = build_backbone(make_backbone_config()).eval()
    for _ in range(8):
        backbone = copy.deepcopy(whole)
        backbone.cast_weights(torch.bfloat16)
        begin = threading.Barrier(4)

        def ask(backbone=backbone, begin=begin):
            begin.wait()
            return backbone.packs

        with ThreadPoolExecutor(4) as threads:
            assert all(future.result() for future in [threads.submit(ask) for _ in range(4)])
        assert {parameter.dtype for parameter in backbone.parameters()} == {torch.bfloat16}
