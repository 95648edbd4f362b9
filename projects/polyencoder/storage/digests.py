"""Digests of what is stored or compared: texts, bytes, and the weights of models."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

__all__ = ["fingerprint", "tensor_bytes", "weight_parts"]


def fingerprint(parts: Iterable[bytes | memoryview | str]) -> str:
    """Hex digest of the parts, with their boundaries."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = memoryview(part.encode() if isinstance(part, str) else part).cast("B")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """A tensor's numbers as bytes, of any dtype and on any device."""
    data: memoryview = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return data


def weight_parts(weights: Mapping[str, Tensor]) -> Iterator[memoryview | str]:
    """Names, dtypes and bytes of weights, in their order, for `fingerprint`."""
    for name, tensor in weights.items():
        yield name
        yield str(tensor.dtype)
        yield tensor_bytes(tensor)
