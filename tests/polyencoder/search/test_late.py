"""Late interaction in numpy: the scores of torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.search.contexts import ContextTokens
from polyencoder.search.late import LateScore, TokenVectors


def unit(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 1000))
def test_the_scores_of_torch(turns, length, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    weights, token_weight = torch.rand(5, generator=generator), torch.randn(8, generator=generator)
    vector = torch.randn(6, generator=generator)
    context_turns, context_tokens = unit(turns, 6, generator=generator), unit(length, 8, generator=generator)
    candidates = [(torch.randn(6, generator=generator), unit(n, 8, generator=generator)) for n in lengths]
    expected = []
    for c, tokens in candidates:
        similarities = tokens @ context_tokens.T
        shares = (tokens @ token_weight * 8**0.5).softmax(0)
        cosines = context_turns @ c / c.norm()
        parts = [(shares * similarities.amax(1)).sum(), similarities.amax(0).mean(), cosines.max(), cosines[-1]]
        expected.append(weights[0] * vector @ c + 20 * (weights[1:] @ torch.stack(parts)))
    score = LateScore({"term_weights": weights.tolist(), "scale": [20.0], "token_weight": token_weight.tolist()})
    scores = score(
        ContextTokens(vector.numpy(), context_tokens.numpy(), context_turns.numpy()),
        [TokenVectors(c.numpy(), tokens.numpy()) for c, tokens in candidates],
    )
    assert (scores.dtype, scores.shape) == (np.float32, (len(lengths),))
    np.testing.assert_allclose(scores, torch.stack(expected), rtol=1e-4, atol=1e-4)
