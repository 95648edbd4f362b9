from __future__ import annotations

import copy
import os
import re
import shutil

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.modeling.compiling import compile_encoders
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.modeling.loading import build_backbone, load_pretrained
from polyencoder.modeling.trainable import TrainableModel
from polyencoder.text import pad

pytestmark = pytest.mark.slow

COMPILER = os.environ.get("CXX") or "g++"


def holding(encoder) -> TrainableModel:
    """A model of this encoder alone."""
    model = TrainableModel()
    model.encoder = encoder
    return model


NEW_ENOUGH = hasattr(torch.compiler, "is_exporting")


@pytest.mark.long
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")
@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 cannot compile transformers' masks")
def test_a_compiled_encoder_is_the_same_encoder():
    """Outputs, gradients and names, for batches of several lengths."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = build_backbone(
        scratch_config(vocabulary_size=20, dim=8, n_layers=1, n_heads=2, ffn_dim=16, n_positions=12)
    ).eval()
    compiled = copy.deepcopy(plain)
    compile_encoders(holding(compiled))
    for width in (5, 8):
        tokens = pad([list(range(4, 4 + width)), [9, 8, 7]], pad_id=0)
        for backbone in (plain, compiled):
            backbone.zero_grad()
            backbone(tokens)[tokens.mask].square().sum().backward()
        torch.testing.assert_close(compiled(tokens)[tokens.mask], plain(tokens)[tokens.mask], rtol=1e-4, atol=1e-5)
        for (name, theirs), (own, ours) in zip(plain.named_parameters(), compiled.named_parameters(), strict=True):
            assert own == name
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_torch_before_2_7_is_named(backbone_folder, monkeypatch):
    model = holding(load_pretrained(backbone_folder("bert")))
    monkeypatch.delattr("torch.compiler.is_exporting", raising=False)
    with pytest.raises(ConfigError, match=f"needs torch 2.7 or later, this is {re.escape(torch.__version__)}"):
        compile_encoders(model)


@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 is refused first")
def test_without_a_compiler_the_error_says_what_to_do(backbone_folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match="^compiling needs a C\\+\\+ compiler, but no-such-compiler is missing"):
        compile_encoders(holding(load_pretrained(backbone_folder("bert"))))


@pytest.mark.skipif(not NEW_ENOUGH, reason="torch 2.6 is refused first")
def test_a_gpu_needs_triton(backbone_folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="on a GPU needs the package `triton`"):
        compile_encoders(holding(load_pretrained(backbone_folder("bert"))), device="cuda")
