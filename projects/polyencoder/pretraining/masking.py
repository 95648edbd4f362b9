"""Masking: chooses the tokens to predict and replaces them, by BERT's rule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyencoder.errors import ConfigError

IGNORED = -100  # the target of tokens that are not predicted: torch's ignore_index

MASKED, REPLACED = 0.8, 0.1  # shares of chosen tokens masked and replaced; the rest is unchanged


class Masking:
    """Dynamic masking by BERT's rule (Devlin et al., 2019, Section 3.1).

    Of the tokens of a sequence that are not `special` the share `probability` is chosen, at least one. Each chosen
    token becomes the mask token (80%), any token that is not special (10%), or stays (10%).
    """

    def __init__(self, mask_id: int, special: Sequence[int], vocabulary: int, probability: float = 0.15) -> None:
        self.mask_id, self._probability = mask_id, probability
        self._is_ordinary = np.ones(vocabulary, dtype=bool)
        self._is_ordinary[[*special, mask_id]] = False
        self._ordinary = self._is_ordinary.nonzero()[0]
        if not len(self._ordinary):
            raise ConfigError("the vocabulary has only special tokens: no word can be masked")

    def __call__(self, ids: Sequence[int], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The masked sequence, and its targets: the chosen tokens, `IGNORED` elsewhere."""
        tokens = np.asarray(ids, dtype=np.int64)
        masked, targets = tokens.copy(), np.full_like(tokens, IGNORED)
        positions = self._is_ordinary[tokens].nonzero()[0]
        if not len(positions):
            return masked, targets
        count = max(1, round(len(positions) * self._probability))
        chosen = rng.choice(positions, count, replace=False)
        targets[chosen] = tokens[chosen]
        draw = rng.random(count)
        masked[chosen[draw < MASKED]] = self.mask_id
        replaced = chosen[(draw >= MASKED) & (draw < MASKED + REPLACED)]
        masked[replaced] = rng.choice(self._ordinary, len(replaced))
        return masked, targets
