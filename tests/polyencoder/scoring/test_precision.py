"""`full_precision`: what a search computes with, and that the program's own settings come back."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from polyencoder.scoring import ContextEncoding, search
from polyencoder.scoring.precision import full_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def the_usual_precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["high", "medium", "highest"])
def test_a_search_computes_in_full_precision(monkeypatch, precision):
    module = sys.modules["polyencoder.scoring.search"]
    seen, score_chunk = [], module.score_chunk
    monkeypatch.setattr(
        module,
        "score_chunk",
        lambda *args, **named: (
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32)),
            score_chunk(*args, **named),
        )[1],
    )
    torch.set_float32_matmul_precision(precision)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        search(ContextEncoding(torch.randn(2, 3, 8)), torch.randn(50, 8), k=3)
    assert seen
    assert set(seen) == {("highest", False)}
    assert torch.get_float32_matmul_precision() == precision


def test_the_last_of_several_threads_restores_it():
    torch.set_float32_matmul_precision("high")
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with full_precision(CPU):
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    with full_precision(CPU):
        thread.start()
        inside.wait()
    assert torch.get_float32_matmul_precision() == "highest"
    done.set()
    thread.join()
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize(
    "setting",
    [
        "torch.set_float32_matmul_precision('medium')",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
        "torch.backends.fp32_precision = 'tf32'",
        "torch.backends.mkldnn.matmul.fp32_precision = 'bf16'",
    ],
)
def test_any_setting_comes_back(setting):
    """In a process of its own: torch does not forget that its newer settings were used."""
    if "fp32_precision" in setting and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch has these settings from 2.9 on")
    program = f"""
import torch
from polyencoder.scoring.precision import full_precision

def state():
    found = []
    cuda, mkldnn = torch.backends.cuda.matmul, torch.backends.mkldnn
    for read in (torch.get_float32_matmul_precision, lambda: cuda.allow_tf32, lambda: cuda.fp32_precision,
                 lambda: mkldnn.matmul.fp32_precision):
        try:
            found.append(read())
        except (RuntimeError, AttributeError) as error:
            found.append(type(error).__name__)
    return found

{setting}
before = state()
with full_precision(torch.device("cpu")):
    assert state()[:2] == ["highest", False], state()
assert state() == before, (before, state())
"""
    subprocess.run([sys.executable, "-c", program], check=True)
