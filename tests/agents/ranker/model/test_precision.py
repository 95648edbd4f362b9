"""bfloat16, float16 and torch.compile in ParlAI's training loop, and the message where they gain nothing."""

from __future__ import annotations

import functools
import os
import shutil

import parlai.utils.logging as logging
import pytest
import torch
from parlai.agents.ranker.model import agent as model_agent
from parlai.agents.ranker.model import optimization
from parlai.agents.ranker.model.build_trainer import Report
from parlai.core.opt import Opt

from polyencoder.errors import ConfigError

pytestmark = pytest.mark.slow


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(logging, "warning", messages.append)
    return messages


@pytest.fixture
def losses(monkeypatch) -> list[float]:
    """The loss of each training step, from now on."""
    seen: list[float] = []
    after_step = Report.after_step

    def spy(self, run, outcome):
        seen.append(float(outcome.losses.mean()))
        after_step(self, run, outcome)

    monkeypatch.setattr(Report, "after_step", spy)
    return seen


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_missing_is_said(make_agent, warnings):
    make_agent("biencoder", no_cuda=True)
    assert not [line for line in warnings if "--gpu" in line]
    make_agent("biencoder", gpu=0)
    assert "--gpu 0: there is no GPU here: computing on the CPU" in warnings
    warnings.clear()
    optimization.check_precision(Opt(no_cuda=True, override={"gpu": 0}), use_cuda=False)  # the GPU of an --init-opt
    assert not warnings


def test_fp16_without_a_gpu_is_said_and_computes_in_fp32(make_agent, warnings):
    agent = make_agent("biencoder", fp16=True)
    assert "--fp16 true needs a GPU: computing in float32. On a CPU --bf16 true may be faster" in warnings
    assert not agent.fp16


def test_two_precisions_are_refused(make_agent):
    with pytest.raises(ConfigError, match="^--fp16 true and --bf16 true exclude each other"):
        make_agent("biencoder", fp16=True, bf16=True)


@pytest.mark.parametrize("reason", [None, "this processor is too old"])
def test_bf16_says_where_it_gains_nothing(make_agent, warnings, monkeypatch, reason):
    monkeypatch.setattr(optimization, "explain_no_bf16_gain", lambda device: reason)
    make_agent("biencoder", bf16=True)
    messages = [text for text in warnings if "bf16" in text]
    assert messages == ([] if reason is None else ["--bf16 true gains nothing here: this processor is too old"])


@pytest.mark.long
@pytest.mark.skipif(shutil.which(os.environ.get("CXX") or "g++") is None, reason="no C++ compiler")
def test_what_was_trained_compiled_is_there_without(train, evaluate, losses, tmp_path, monkeypatch):
    """The same losses as without, and a model that evaluates, where nothing is compiled, to what its training says.

    Its graphs are captured and differentiated; tests/polyencoder/modeling/test_trainable.py makes machine code of them.
    """
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    options = {"max_train_steps": 3, "num_epochs": -1, "validation_every_n_epochs": -1, "warmup_updates": -1}
    report = train("polyencoder", tmp_path / "compiled", compile=True, **options)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    train("polyencoder", tmp_path / "plain", **options)
    assert len(losses) == 6
    assert losses[3:] == pytest.approx(losses[:3], rel=1e-3)
    loaded = [evaluate(tmp_path / name)["loss"] for name in ("compiled", "plain")]
    assert loaded == pytest.approx([report["loss"]] * 2, rel=1e-3)


def test_only_learning_compiles(make_agent, monkeypatch):
    """A checkpoint that was trained with --compile is read where nothing can compile."""
    compiled = []
    monkeypatch.setattr(model_agent, "compile_encoders", lambda model, *, device: compiled.append(device))
    make_agent("biencoder", compile=True)
    make_agent("biencoder", compile=True, datatype="valid")
    assert compiled == ["cpu"]
