"""Tables of tensor names, and a checkpoint's tensors under the new ones."""

from __future__ import annotations

import pytest
import torch

from polyencoder.errors import CheckpointError
from polyencoder.importing.names import (
    WORDS,
    add_unknown_rows,
    check_names,
    expand_names,
    rename,
)


def test_a_table_names_the_tensors_of_every_layer():
    names = expand_names({"emb.weight": WORDS, "l{}.fc.*": "encoder.layer.{}.dense.*"}, n_layers=2)
    layers = {f"l{i}.fc.{kind}": f"encoder.layer.{i}.dense.{kind}" for i in range(2) for kind in ("weight", "bias")}
    assert names == {"emb.weight": WORDS, **layers}


def test_tensors_get_their_new_names_in_float32():
    state = {"a": torch.ones(2).half(), "head.x": torch.zeros(1), "b": torch.zeros(1)}
    weights = rename(state, {"b": "B", "a": "A"}, left_out=("head.",), origin="x.pt")
    assert {name: tensor.dtype for name, tensor in weights.items()} == {"B": torch.float32, "A": torch.float32}
    assert weights["A"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("state", "earlier", "problem"),
    [
        ("ab", [], None),
        ("abc", [], None),
        ("a", [], r"b is missing$"),
        ("abd", [], r"d is not a tensor of this model$"),
        ("ad", ["c is odd"], r"b is missing \(and 2 more\)$"),
        ("ab", ["c is odd"], r"c is odd$"),
    ],
)
def test_tensors_that_do_not_match_are_named(state, earlier, problem):
    arguments = {"required": "ab", "optional": "c", "earlier": earlier, "origin": "x.pt"}
    if problem is None:
        check_names(state, **arguments)
        return
    with pytest.raises(CheckpointError, match=f"^x.pt: not the model that its options describe: {problem}"):
        check_names(state, **arguments)


def test_missing_rows_are_the_unknown_tokens():
    words = torch.arange(6.0).view(3, 2)
    assert add_unknown_rows(words, unknown=1, size=5).tolist() == [*words.tolist(), [2.0, 3.0], [2.0, 3.0]]
    assert add_unknown_rows(words, unknown=1, size=3).tolist() == words.tolist()
