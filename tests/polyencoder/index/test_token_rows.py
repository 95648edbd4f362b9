from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from polyencoder.errors import CheckpointError
from polyencoder.index.stored_tokens import StoredTokens
from polyencoder.index.token_rows import TokenRows
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
    starts = [0, len(parts_of[0])]
    files = [(rows >= start) & (rows < start + len(some)) for start, some in zip(starts, parts_of, strict=False)]
    whole = TokenRows.joined(parts)
    for taken in (
        TokenRows.taken([(whole, torch.arange(len(rows)), rows)]),
        TokenRows.taken(
            [
                (part, inside.nonzero().squeeze(1), rows[inside] - start)
                for part, inside, start in zip(parts, files, starts, strict=False)
                if inside.any()
            ]
        ),
    ):
        for row, tokens in zip(rows.tolist(), taken.vectors(torch.device("cpu")), strict=True):
            expected = torch.nn.functional.normalize(read[row].tokens, dim=-1)
            torch.testing.assert_close(tokens, expected, rtol=2e-3, atol=2e-3)


class Sizes(TorchDispatchMode):
    """Records the bytes of each tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[int] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        if function._schema.returns and all(one.alias_info is None for one in function._schema.returns):
            self.made += [found.nbytes] if isinstance(found, torch.Tensor) else []
        return found


def test_memory_holds_one_copy_of_what_is_taken():
    part = TokenRows(torch.randint(-127, 127, (60_000, 16), dtype=torch.int8), torch.arange(0, 60_001, 10))
    rows = torch.arange(6_000).flip(0)
    with Sizes() as sizes:
        taken = TokenRows.taken([(part, torch.arange(len(rows)), rows)])
    assert taken.stored.equal(part.stored.unflatten(0, (6_000, 10)).flip(0).flatten(0, 1))
    assert sorted(sizes.made)[-1] == part.stored.nbytes
    assert sorted(sizes.made)[-2] < part.stored.nbytes / 3


def test_damaged_offsets_are_an_error():
    part = TokenRows(torch.zeros(3, 2, dtype=torch.int8), torch.tensor([0, 2, 1]))
    with pytest.raises(CheckpointError, match="are damaged"):
        TokenRows.taken([(part, torch.arange(2), torch.arange(2))])
