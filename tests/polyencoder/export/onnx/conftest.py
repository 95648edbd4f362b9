"""Exported tiny rankers, one for each architecture and kind of codes, shared by this folder's tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from filelock import FileLock

from polyencoder import Ranker
from polyencoder.config import DenseConfig
from polyencoder.export.onnx import export_onnx, exporters
from polyencoder.modeling.export_steps import CandidatesStep
from polyencoder.text import TextEncoder

KINDS = {
    "bi": ("bi", {"reduction": "mean"}),
    "bi-first-shared": ("bi", {"share_encoders": True, "reduction": "first", "normalize": True, "output_scaling": 3.0}),
    "bi-max": ("bi", {"reduction": "max"}),
    "bi-mean_first": ("bi", {"reduction": "mean_first", "reduction_outputs": 5}),
    "bi-mean_except_first": ("bi", {"reduction": "mean_except_first"}),
    "poly-codes": ("poly", {"reduction": "mean", "codes_attention": "sqrt", "output_scaling": 0.5}),
    "poly-n_first": ("poly", {"context_vectors": "n_first"}),
    "poly-n_last": ("poly", {"context_vectors": "n_last", "normalize": True}),
    "poly-first_n_last": ("poly", {"context_vectors": "first_n_last", "poly_attention": "sqrt"}),
    "poly-turns": ("poly", {"context_vectors": "turns", "turn_end": 3}),
    "poly-multihead": ("poly", {"codes_attention": "multihead"}),
    "poly-one_code": ("poly", {"n_codes": 1}),
    "bi-mlp": ("bi", {"candidate_mlp": True, "share_encoders": True}),
    # more codes than a context has tokens: the graph takes the other side of min(codes, length)
    "poly-many_codes": ("poly", {"context_vectors": "first_n_last", "n_codes": 60}),
    "late": ("late", {"turn_end": 3, "reduction": "mean"}),
    "late-map": ("late", {"token_dim": 8, "normalize": True, "output_scaling": 3.0, "share_encoders": True}),
    "cross": ("cross", {}),
    "cross-mean": ("cross", {"reduction": "mean", "pair_start": True, "output_scaling": 2.0}),
    "cross-head": ("cross", {"dense": (DenseConfig(size=8, activation="gelu", norm_eps=1e-5),), "pair_start": "end"}),
}
# By torch's current exporter, which takes seconds for a graph. The others are traced: see test_exporters.py.
BY_CURRENT_EXPORTER = ("bi",)
# Layers of those that are exported so, too, at night: each operator once, most of them behind embeddings alone.
N_LAYERS = {"bi-max": 0, "poly-n_last": 1, "poly-turns": 0, "poly-multihead": 0, "poly-many_codes": 0, "late": 0}
N_LAYERS |= {"cross": 1}


assert_close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def load_graphs(folder, backend: str = "onnx") -> Ranker:
    return Ranker.from_pretrained(folder, backend=backend, device="cpu")


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture(params=[kind for kind in KINDS if not kind.startswith("cross")])
def separable(request) -> str:
    """A kind that has vectors."""
    return request.param


@pytest.fixture(scope="session")
def trace_candidates() -> Callable[[pytest.MonkeyPatch], None]:
    """(patch) -> graphs of candidates are traced, also where the current exporter makes the others."""
    exported_by = exporters._export_with_torch

    def trace(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            exporters,
            "_export_with_torch",
            lambda step, *args: not isinstance(step, CandidatesStep) and exported_by(step, *args),
        )

    return trace


@pytest.fixture(scope="session")
def make_exportable(make_model, make_backbone_config, tokenizer) -> Callable[..., Ranker]:
    """(kind) -> a torch ranker of this kind, whose terms and tokens all count."""

    def make(kind: str) -> Ranker:
        architecture, fields = KINDS[kind]
        model = make_model(
            architecture,
            backbone=make_backbone_config(n_layers=N_LAYERS.get(kind, 1 if kind in BY_CURRENT_EXPORTER else 2)),
            **fields,
        )
        with torch.no_grad():
            if model.has_new_terms:
                model.term_weights.copy_(torch.tensor([0.9, 0.5, 0.3, 0.4, 0.2])[: len(model.term_weights)])
            if architecture == "late":
                model.token_weight.copy_(torch.linspace(-1, 1, model.token_dim))
        return Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")

    return make


@pytest.fixture(scope="session")
def exported(make_exportable, tmp_path_factory, traced_graphs):
    """(kind) -> a torch ranker of this kind and the folder of its graphs, which all processes share."""
    pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    cache = {}

    def make(kind: str):
        if kind not in cache:
            ranker, folder = make_exportable(kind), base / f"onnx-{kind}"
            with FileLock(f"{folder}.lock"), pytest.MonkeyPatch.context() as patch:
                patch.setattr(exporters, "IS_CURRENT", traced_graphs and kind in BY_CURRENT_EXPORTER)
                if not folder.exists():
                    export_onnx(ranker, folder)
            cache[kind] = ranker, folder
        return cache[kind]

    return make


@pytest.fixture
def dialogues(sentences):
    """Contexts of very different lengths, more than go through a model together."""
    return [["hi"], *([s] for s in sentences), sentences[:3], sentences, *(sentences[i : i + 2] for i in range(7))]


@pytest.fixture
def block_import(monkeypatch) -> Callable[[str], None]:
    """(package) -> importing it fails as if it were not installed."""

    def block(package: str) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return block
