"""`Contexts`: the vectors of encoded contexts as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from polyencoder.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of multi-head attention as arrays; see `polyencoder.scoring.context.Keys`."""

    vectors: Array
    biases: Array
    heads: int


class ContextTokens(NamedTuple):
    """The further vectors of one context that a late-interaction encoder compares."""

    vector: Array
    """[dim]"""
    tokens: Array
    """[tokens, token_dim], each of length 1."""
    turns: Array
    """[turns, dim], each of length 1, the latest last."""

    @classmethod
    def from_texts(cls, texts: Sequence[Any], mask: Array | None) -> list[ContextTokens]:
        """Converts contexts, each a torch `Texts` of batch size 1; the mask [contexts, turns] marks their turns."""
        counts = [1] * len(texts) if mask is None else mask.sum(axis=1).tolist()
        return [
            cls(
                to_array(text.vectors[0]).copy(),
                to_array(text.tokens[0, : max(1, int((text.weights[0] > 0).sum()))]).copy(),
                to_array(text.turns[0, :count]).copy(),
            )
            for text, count in zip(texts, counts, strict=True)
        ]

    @classmethod
    def from_arrays(cls, ids: Sequence[Sequence[int]], outputs: Mapping[str, Array]) -> list[ContextTokens]:
        """The vectors of contexts with these token ids, from what the graph gives."""
        rows = zip(
            outputs["vector"], outputs["tokens"], outputs["turns"], ids, outputs["codes_mask"].sum(1), strict=True
        )
        return [
            cls(vector.copy(), tokens[: max(1, len(row))].copy(), turns[:count].copy())
            for vector, tokens, turns, row, count in rows
        ]


@dataclass(frozen=True, eq=False)
class Contexts:
    """A batch of encoded contexts, as `polyencoder.scoring.ContextEncoding`, in arrays.

    Args:
        vectors: [contexts, codes, dim], float32 or float64.
        tokens: the further vectors that a late-interaction encoder compares; None for other models.

    Raises:
        InputError: the vectors have another shape or type.
    """

    vectors: Array
    mask: Array | None = None
    keys: Keys | None = None
    tokens: list[ContextTokens] | None = None

    def __post_init__(self) -> None:
        if self.vectors.ndim != 3 or self.vectors.shape[1] == 0 or self.vectors.dtype.kind != "f":
            raise InputError(
                "context vectors must be floating point [batch, codes, dim] with at least one code, "
                f"got {self.vectors.dtype} {list(self.vectors.shape)}"
            )

    @classmethod
    def from_encoding(cls, contexts: Any) -> Contexts:
        """Converts what a model encoded, a tensor or an array, [contexts, dim] or [contexts, codes, dim].

        InputError for another shape.
        """
        if isinstance(contexts, cls):
            return contexts
        if hasattr(contexts, "vectors"):  # torch's `ContextEncoding`
            mask, keys, tokens = contexts.mask, contexts.keys, contexts.tokens
            mask = None if mask is None else to_array(mask)
            return cls(
                _to_floats(contexts.vectors),
                mask,
                None if keys is None else Keys(_to_floats(keys.vectors), _to_floats(keys.biases), keys.heads),
                None if tokens is None else ContextTokens.from_texts(tokens, mask),
            )
        try:
            vectors = _to_floats(contexts)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"contexts is {contexts!r:.60}; it must be vectors, [contexts, dim]") from None
        return cls(vectors[:, None] if vectors.ndim == 2 else vectors)

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def batch_size(self) -> int:
        return len(self.vectors)

    @property
    def n_codes(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[2])

    @property
    def context_vectors(self) -> Array:
        """The vector of each context, [contexts, dim], of a model that `has_one_vector`."""
        return self.vectors[:, 0] if self.tokens is None else np.stack([context.vector for context in self.tokens])

    def list_codes(self) -> list[Array]:
        """The vectors of each context without padding: float32 [n, dim]."""
        vectors = self.vectors.astype(np.float32, copy=False)
        return [*vectors] if self.mask is None else [rows[mask] for rows, mask in zip(vectors, self.mask, strict=True)]

    def select(self, positions: Sequence[int] | slice) -> Contexts:
        """The contexts at these positions."""
        rows = positions if isinstance(positions, slice) else [*positions]
        tokens = self.tokens
        if tokens is not None:
            tokens = tokens[rows] if isinstance(rows, slice) else [tokens[row] for row in rows]
        keys = self.keys
        return replace(
            self,
            vectors=self.vectors[rows],
            mask=None if self.mask is None else self.mask[rows],
            keys=None if keys is None else Keys(keys.vectors[rows], keys.biases[rows], keys.heads),
            tokens=tokens,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Contexts]) -> Contexts:
        """The contexts of several batches, padded to the most codes."""
        masks = [part.mask for part in parts]
        if len({part.n_codes for part in parts}) > 1 or any(mask is not None for mask in masks):
            masks = [np.ones(part.vectors.shape[:2], bool) if part.mask is None else part.mask for part in parts]
        tokens = [text for part in parts for text in part.tokens or ()] or None
        mask = None if masks[0] is None else stack_arrays([mask for mask in masks if mask is not None])
        keys = [part.keys for part in parts if part.keys is not None]
        joined = None
        if keys:
            joined = Keys(
                stack_arrays([part.vectors for part in keys]),
                stack_arrays([part.biases for part in keys]),
                keys[0].heads,
            )
        return cls(stack_arrays([part.vectors for part in parts]), mask, joined, tokens)


def stack_arrays(parts: Sequence[Array]) -> Array:
    """Concatenates arrays [batch, ...]; those with fewer codes are padded with zeros (False)."""
    if parts[0].ndim == 1:
        return np.concatenate(parts)
    width = max(part.shape[1] for part in parts)
    behind = [(0, 0)] * (parts[0].ndim - 2)  # nothing is added to the dimensions after the codes
    return np.concatenate([np.pad(part, [(0, 0), (0, width - part.shape[1]), *behind]) for part in parts])


def check_finite(contexts: Contexts, *, dim: int) -> None:
    """Raises InputError unless the vectors of the contexts fit an index of this dimension, and are finite."""
    if contexts.dim != dim:
        raise InputError(f"context vectors {list(contexts.vectors.shape)} do not fit an index of dimension {dim}")
    finite: Array = np.all(np.isfinite(contexts.vectors), axis=-1)
    if contexts.mask is not None:
        finite |= ~contexts.mask
    if not finite.all():
        row = int(np.argmin(finite.all(axis=-1)))
        raise InputError(f"the vectors of context {row} are not finite (inf or nan): this model cannot search")


def to_array(value: Any) -> Array:
    """Converts an array, or a tensor on any device, to numpy's; bfloat16 and float16 become float32."""
    if hasattr(value, "detach"):  # torch's
        value = value.detach().cpu()
        if value.is_floating_point() and value.dtype.itemsize < 4:  # numpy has no bfloat16
            value = value.float()
        return np.asarray(value.numpy())
    return np.asarray(value)


def _to_floats(value: Any) -> Array:
    """Converts numbers to float32, but those in float64."""
    array = to_array(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{array.dtype} is no type of numbers")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
