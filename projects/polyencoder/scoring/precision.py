"""Full-precision fp32 products for exact scores, whatever precision the program sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

_lock = threading.Lock()
_settings: list[_Precision] = []  # the precision to restore, once for each open block


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disables autocast on this device, and TF32 (GPUs) and bfloat16 (CPUs) in fp32 matrix products.

    The latter is process-wide: the first block sets it, the last one restores it.
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
    """The current precision of fp32 products: global, and from torch 2.9 for each library."""

    def __init__(self) -> None:
        self._global = None
        with suppress(RuntimeError):  # torch raises where the libraries' settings differ
            self._global = torch.get_float32_matmul_precision()
        libraries: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
        self._libraries = [(one, one.fp32_precision) for one in libraries if hasattr(one, "fp32_precision")]

    def restore(self) -> None:
        if self._global is not None:
            torch.set_float32_matmul_precision(self._global)
        for library, precision in self._libraries:
            library.fp32_precision = precision
