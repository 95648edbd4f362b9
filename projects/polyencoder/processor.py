"""Facts about the processor, without torch."""

from __future__ import annotations

import platform
import re
from pathlib import Path

_FLAGS = {  # of Linux, for what torch and OpenBLAS call by these names; the largest first
    "AVX512": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "AVX2": {"avx2", "fma"},
}


def is_intel() -> bool:
    """Whether the processor is Intel's, or unknown."""
    if about := _read_cpuinfo():
        return "GenuineIntel" in about
    return "AuthenticAMD" not in platform.processor()  # Windows names the maker


def find_vector_instructions() -> str | None:
    """ "AVX512" or "AVX2" on a processor with these instructions; None without them, or if unknown (not Linux)."""
    match = re.search(r"^flags\s*:(.*)$", _read_cpuinfo(), re.MULTILINE)
    flags = {*match[1].split()} if match else set[str]()
    return next((name for name, needed in _FLAGS.items() if needed <= flags), None)


def _read_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
