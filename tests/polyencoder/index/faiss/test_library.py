"""FAISS's OpenBLAS has kernels of this century, and nobody else hears of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from polyencoder import processor
from polyencoder.errors import ConfigError
from polyencoder.index.faiss import library as faiss_library
from polyencoder.processor import is_intel

pytestmark = pytest.mark.slow

pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")

KERNELS = """
import ctypes, os
from polyencoder.index.faiss.library import import_faiss
before = dict(os.environ)
import_faiss()
assert dict(os.environ) == before
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "faiss_cpu.libs/libopenblas" in line}
for library in libraries:
    name = ctypes.CDLL(library).openblas_get_corename
    name.restype = ctypes.c_char_p
    print(name().decode())
"""


def kernels(**environment: str) -> list[str]:
    """The kernels that FAISS's OpenBLAS chooses here, read in a new process; empty without such a library."""
    variables = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"} | environment
    done = subprocess.run([sys.executable, "-c", KERNELS], env=variables, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks at Linux's maps of a process")
def test_the_processor_is_known():
    if not is_intel() or not (names := kernels()):
        pytest.skip("needs an Intel processor and a FAISS with an OpenBLAS of its own")
    expected = {"AVX512": ["SkylakeX"], "AVX2": ["Haswell"]}
    assert names == expected.get(torch.backends.cpu.get_cpu_capability(), names)
    assert kernels(OPENBLAS_CORETYPE="Sandybridge") == ["Sandybridge"]  # who says something is heard


def test_only_where_it_is_needed(monkeypatch):
    """On a processor of another maker the variable is not set."""
    core_types = []
    monkeypatch.delitem(sys.modules, "faiss")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)

    def require(*_, **__):
        core_types.append(os.environ.get("OPENBLAS_CORETYPE"))
        return SimpleNamespace(__version__="1.15.0")

    monkeypatch.setattr(faiss_library, "require", require)
    monkeypatch.setattr(faiss_library, "find_vector_instructions", lambda: "AVX512")
    for intels in (True, False):
        monkeypatch.setattr(faiss_library, "is_intel", lambda intels=intels: intels)
        faiss_library.import_faiss()
    assert core_types == ["SkylakeX", None]
    assert "OPENBLAS_CORETYPE" not in os.environ


def test_the_processor_is_read_only_before_the_import(monkeypatch):
    """Each search asks for the module; of many processors Linux writes pages."""
    faiss_library.import_faiss()
    monkeypatch.setattr(processor, "_read_cpuinfo", lambda: pytest.fail("read again"))
    assert faiss_library.import_faiss() is sys.modules["faiss"]


def test_an_old_one_is_refused(monkeypatch):
    """The fast scan of FAISS 1.12 finds half of what it should, without an error; packages say the same."""
    faiss = faiss_library.import_faiss()
    monkeypatch.setattr(faiss, "__version__", "1.14.3")
    message = "faiss 1.14.3 is installed; 1.15 or later is needed: pip install 'faiss-cpu>=1.15'"
    with pytest.raises(ConfigError, match=re.escape(message)):
        faiss_library.import_faiss()
    for file in ("pyproject.toml", "runtime/pyproject.toml"):
        assert 'faiss = ["faiss-cpu>=1.15", "numpy>=1.26.4"]' in (Path(__file__).parents[4] / file).read_text(
            encoding="utf-8"
        )
