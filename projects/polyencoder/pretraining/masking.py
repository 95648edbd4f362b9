"""Masking: chooses the tokens to predict and replaces them, by BERT's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyencoder.errors import ConfigError

IGNORED = -100  # the target of tokens that are not predicted: torch's ignore_index

MASKED, REPLACED = 0.8, 0.1  # shares of chosen tokens masked and replaced; the rest is unchanged


@dataclass(frozen=True)
class Masking:
    """Dynamic masking by BERT's rule (Devlin et al., 2019, Section 3.1).

    Of the tokens of a sequence that are not `special` the share `probability` is chosen, one at least: a whole number
    of them, the nearest. 80% of the chosen ones become the mask token, 10% any token that is not special, and 10% stay,
    each by a draw of its own.
    """

    mask_id: int
    special: Sequence[int]
    vocabulary: int
    probability: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ConfigError(
                f"mask_probability is {self.probability}; it must be above 0 and below 1", argument="mask_probability"
            )
        ordinary = np.setdiff1d(np.arange(self.vocabulary), np.asarray([*self.special, self.mask_id]))
        if not len(ordinary):
            raise ConfigError("the vocabulary has only special tokens: no word can be masked")
        object.__setattr__(self, "_ordinary", ordinary)
        is_ordinary = np.zeros(self.vocabulary, dtype=bool)
        is_ordinary[ordinary] = True
        object.__setattr__(self, "_is_ordinary", is_ordinary)

    def __call__(self, ids: Sequence[int], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The masked sequence, and its targets: the chosen tokens, `IGNORED` elsewhere."""
        tokens = np.asarray(ids, dtype=np.int64)
        seen, targets = tokens.copy(), np.full_like(tokens, IGNORED)
        places = self._is_ordinary[tokens].nonzero()[0]  # type: ignore[attr-defined]
        if not len(places):
            return seen, targets
        count = max(1, round(len(places) * self.probability))
        chosen = rng.choice(places, count, replace=False)
        targets[chosen] = tokens[chosen]
        draw = rng.random(count)
        seen[chosen[draw < MASKED]] = self.mask_id
        replaced = chosen[(draw >= MASKED) & (draw < MASKED + REPLACED)]
        seen[replaced] = rng.choice(self._ordinary, len(replaced))  # type: ignore[attr-defined]
        return seen, targets
