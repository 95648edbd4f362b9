"""A ranker with its encoder's weights in bfloat16."""

from __future__ import annotations

import copy
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from polyencoder import Ranker
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.errors import ConfigError, InputError
from polyencoder.export.onnx import export_onnx
from polyencoder.index.open import open_index
from polyencoder.modeling.loading import build_backbone
from polyencoder.training.trainer import Trainer
from tests.commands import invoke

TEXTS = ["two dogs play", "a man sleeps", "the dog runs home", "hello"]


@pytest.fixture(params=["bi", "poly", "cross", "late"])
def folder(request, make_ranker, tmp_path):
    make_ranker(request.param).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_scores_are_nearly_those_of_float32(folder):
    exact, rounded = Ranker.from_pretrained(folder), Ranker.from_pretrained(folder, dtype="bfloat16")
    ours, theirs = (torch.as_tensor(one.score([["hi there"], ["two dogs"]], TEXTS)) for one in (rounded, exact))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03 * float(theirs.abs().max()))
    assert not torch.equal(ours, theirs)


def test_encoders_are_in_bfloat16_and_the_rest_is_not(folder):
    types = {}
    for name, parameter in Ranker.from_pretrained(folder, dtype="bfloat16").model.named_parameters():
        types.setdefault(parameter.dtype, []).append(name)
    assert all("tower" in name for name in types[torch.bfloat16])
    assert not any("tower" in name for name in types.get(torch.float32, []))


def test_it_has_the_fingerprints_of_the_model_in_float32(folder):
    exact, rounded = Ranker.from_pretrained(folder), Ranker.from_pretrained(folder, dtype="bfloat16")
    assert compute_model_fingerprint(exact.model, exact.text) == compute_model_fingerprint(rounded.model, rounded.text)


@pytest.mark.slow
def test_an_index_of_one_is_searched_by_the_other(make_ranker, tmp_path):
    make_ranker("poly").save_pretrained(tmp_path / "model")
    exact, rounded = (Ranker.from_pretrained(tmp_path / "model", dtype=dtype) for dtype in ("float32", "bfloat16"))
    for maker, searcher, name in ((exact, rounded, "a"), (rounded, exact, "b")):
        maker.index(TEXTS, tmp_path / name)
        hits = searcher.search(["two dogs"], open_index(tmp_path / name, searcher), top_k=4)
        assert {hit.text for hit in hits} == set(TEXTS)


def test_rounded_weights_are_not_saved(folder, tmp_path):
    with pytest.raises(InputError, match="loaded in low precision: load the ranker without dtype"):
        Ranker.from_pretrained(folder, dtype="bfloat16").save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists() or not list((tmp_path / "again").iterdir())


def test_rounded_weights_are_not_trained(folder):
    """Updates would be lost in their rounding, and what was trained could not be saved."""
    with pytest.raises(ConfigError, match="loaded in low precision: load the ranker without dtype to train it"):
        Trainer(Ranker.from_pretrained(folder, dtype="bfloat16"))


def test_rounded_weights_are_not_exported(folder, tmp_path):
    """Under the fingerprint of those that were loaded, which their graphs would not have."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'parlai-polyencoder[onnx]'")
    with pytest.raises(InputError, match="load the ranker without dtype to export it|is not exported to ONNX"):
        export_onnx(Ranker.from_pretrained(folder, dtype="bfloat16"), tmp_path / "graphs")
    assert not (tmp_path / "graphs").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dtype": "int4"}, "dtype is 'int4'; it must be one of float32, "),
        ({"dtype": "float16", "device": "cpu"}, "'float16' needs a GPU"),
    ],
)
def test_what_cannot_be(folder, options, problem):
    with pytest.raises(ConfigError, match=problem):
        Ranker.from_pretrained(folder, **options)


@pytest.mark.slow
def test_commands_take_it(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    common = ["--model", str(tmp_path / "model"), "--model-dtype"]
    made = ["index", "--candidates", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "index")]
    asked = ["search", "--index", str(tmp_path / "index"), "--context", "two dogs", "--json"]
    for arguments in (made, asked):
        done = invoke(*arguments, *common, "bfloat16")
        assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.strip().splitlines()[-1])
    failed = invoke(*asked, *common, "bf16")
    assert failed.exit_code != 0
    assert "model_dtype is 'bf16'; it must be one of float32" in failed.stderr


def test_a_model_that_is_cast_as_a_whole_computes_in_that_type(folder):
    """By torch's own `to`: nothing of it is in float32 then."""
    ranker = Ranker.from_pretrained(folder)
    expected = torch.as_tensor(ranker.score([["hi there"]], TEXTS))
    ranker.model.to(torch.bfloat16)
    torch.testing.assert_close(
        torch.as_tensor(ranker.score([["hi there"]], TEXTS)),
        expected,
        rtol=0.05,
        atol=0.05 * float(expected.abs().max()),
    )


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
            assert all(one.result() for one in [threads.submit(ask) for _ in range(4)])
        assert {parameter.dtype for parameter in backbone.parameters()} == {torch.bfloat16}
