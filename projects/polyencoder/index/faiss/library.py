"""Imports FAISS so that its matrix products use the processor's vector instructions.

FAISS's wheels for Linux have OpenBLAS 0.3.15, which mistakes newer Intel processors for a Pentium 4 (OpenBLAS issue
3453, fixed in 0.3.19), and then multiplies at a fifth of their speed. An environment variable, read when it is loaded,
prevents that.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from polyencoder.errors import ConfigError
from polyencoder.packages import require
from polyencoder.processor import find_vector_instructions, is_intel

MIN_VERSION = (1, 15)
"""The oldest version. Older ones check less of what they read; before 1.13 their fast scan of codes finds half."""
_CORE = "OPENBLAS_CORETYPE"
_CORES = {"AVX512": "SkylakeX", "AVX2": "Haswell"}  # OpenBLAS's names for the oldest processors that have these


def import_faiss() -> Any:
    """The module `faiss`. The environment is restored; ConfigError if FAISS is not installed, or too old."""
    faiss = _import()
    if tuple(map(int, faiss.__version__.split(".")[:2])) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise ConfigError(
            f"faiss {faiss.__version__} is installed; {oldest} or later is needed: pip install 'faiss-cpu>={oldest}'"
        )
    return faiss


def _import() -> Any:
    if "faiss" in sys.modules or _CORE in os.environ or not is_intel():  # FAISS is loaded once: a search asks only that
        return require("faiss", extra="faiss")
    if (core := _CORES.get(find_vector_instructions() or "")) is None:
        return require("faiss", extra="faiss")
    os.environ[_CORE] = core
    try:
        return require("faiss", extra="faiss")
    finally:
        del os.environ[_CORE]
