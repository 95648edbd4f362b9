"""fp32 products of full precision, for scores that are called exact, whatever the program allows elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["full_precision"]

_lock = threading.Lock()
_settings: list[_Precision] = []  # what was set before, once for each block that is open now


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast on this device, and no TF32 (10 bits, GPUs) or bfloat16 (7 bits, CPUs) in products of fp32 matrices.

    The latter is a setting of the process: the first block that begins makes it, the last that ends restores it.
    """
    with _lock:
        _settings.append(_settings[0] if _settings else _Precision())
        if len(_settings) == 1:
            torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        with _lock:
            before = _settings.pop()
            if not _settings:
                before.restore()


class _Precision:
    """The current precision of fp32 products: for all, and, from torch 2.9 on, for each library."""

    def __init__(self) -> None:
        self._of_all = None
        with suppress(RuntimeError):  # torch reads it only where the libraries agree with it
            self._of_all = torch.get_float32_matmul_precision()
        libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
        self._of_each = [(one, one.fp32_precision) for one in libraries if hasattr(one, "fp32_precision")]

    def restore(self) -> None:
        if self._of_all is not None:
            torch.set_float32_matmul_precision(self._of_all)
        for library, precision in self._of_each:
            library.fp32_precision = precision
