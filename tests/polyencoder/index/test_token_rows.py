from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.index.token_rows import StoredTokens, TokenRows
from polyencoder.scoring.tokens import TokenVectors


@given(data=st.data())
def test_any_rows_in_any_order(data):
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=8))
    read = [TokenVectors(torch.zeros(2), torch.randn(length, 3)) for length in lengths]
    cut = data.draw(st.integers(0, len(read) - 1))
    parts_of = [some for some in (read[:cut], read[cut:]) if some]
    parts = [TokenRows.empty([len(one.tokens) for one in some], StoredTokens("float16", 3, "")) for some in parts_of]
    for part, some in zip(parts, parts_of, strict=True):
        for row, one in reversed(list(enumerate(some))):
            part.put([row], [one])
    rows = torch.tensor(data.draw(st.lists(st.integers(0, len(read) - 1), min_size=1, max_size=9)))
    taken = TokenRows.joined(parts).take(rows)
    for row, tokens in zip(rows.tolist(), taken.vectors(torch.device("cpu")), strict=True):
        expected = torch.nn.functional.normalize(read[row].tokens, dim=-1)
        torch.testing.assert_close(tokens, expected, rtol=2e-3, atol=2e-3)
