"""Digests of what is stored or compared: texts, bytes, files, and the weights of models."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from polyencoder.config import WeightDtype

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK = 1 << 20
_END = 1 << 16  # bytes


def compute_fingerprint(parts: Iterable[bytes | memoryview | str], *, size: int = 16) -> str:
    """Hex digest, of `size` bytes, of the parts with their boundaries."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        data = memoryview(part.encode() if isinstance(part, str) else part).cast("B")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def compute_file_digest(
    path: str | os.PathLike[str],
    *,
    new: Callable[[], Any] = hashlib.sha256,
    progress: Callable[[int], object] | None = None,
) -> str:
    """A file's digest, by default its SHA-256 as `sha256sum` prints it; `progress` gets numbers of bytes."""
    digest = new()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return str(digest.hexdigest())


def compute_ends_fingerprint(path: str | os.PathLike[str]) -> str:
    """A digest of a file's first and last bytes: cheap, and different for most files."""
    with open(path, "rb") as file:
        first = file.read(_END)
        file.seek(max(0, os.path.getsize(path) - _END))
        return compute_fingerprint([first, file.read(_END)])


def iter_file_parts(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    """A text for each file that changes with its size, beginning and end, for `compute_fingerprint`."""
    return (f"{os.path.getsize(path)} {compute_ends_fingerprint(path)}" for path in paths)


def get_tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's numbers as bytes, of any dtype and on any device."""
    import torch  # here, as in the next functions: digests of texts and files need none

    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data


def iter_weight_parts(weights: Mapping[str, Tensor]) -> Iterator[memoryview | str]:
    """Names, dtypes and bytes of weights, in their order, for `compute_fingerprint`."""
    for name, tensor in weights.items():
        yield name
        yield str(tensor.dtype)
        yield get_tensor_bytes(tensor)


def compute_weights_fingerprint(
    weights: Mapping[str, Tensor], *, dtype: WeightDtype = "float32", progress: Callable[[int], object] | None = None
) -> str:
    """Digest of a model's weights, independent of the dtype they are stored in.

    `dtype`: the dtype in which they will be saved. `progress` is called with the bytes of each tensor.
    """

    import torch

    def iter_parts() -> Iterator[memoryview | str]:
        for name in sorted(weights):
            tensor = weights[name].detach().cpu()
            values = tensor.to(getattr(torch, dtype)).float() if tensor.is_floating_point() else tensor
            yield name
            yield get_tensor_bytes(values)
            if progress is not None:
                progress(tensor.nbytes)

    return compute_fingerprint(iter_parts())
