"""Maps tensor names of other formats to names of Hugging Face encoders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from polyencoder.errors import CheckpointError

WORDS, POSITIONS, SEGMENTS = (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))


def expand_names(table: Mapping[str, str], *, n_layers: int = 1) -> dict[str, str]:
    """Each tensor that a table names -> its new name.

    In a table, `{}` is the number of a layer, and `*` is `weight` and `bias`.
    """
    names = {}
    for old, new in table.items():
        for layer in range(n_layers if "{}" in old else 1):
            for kind in ("weight", "bias") if "*" in old else ("",):
                names[old.format(layer).replace("*", kind)] = new.format(layer).replace("*", kind)
    return names


def check_names(
    state: Iterable[str],
    required: Iterable[str],
    optional: Iterable[str] = (),
    *,
    earlier: Iterable[str] = (),
    origin: str,
) -> None:
    """Raises CheckpointError, naming the first problem, if a checkpoint's tensors do not match the model.

    `required` names must exist, `optional` ones may; `earlier`: problems from earlier checks.
    """
    expected, present = dict.fromkeys([*required, *optional]), set(state)
    problems = [f"{name} is missing" for name in required if name not in present]
    problems += [f"{name} is not a tensor of this model" for name in state if name not in expected]
    if problems := [*problems, *earlier]:
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(f"{origin}: not the model that its options describe: {problems[0]}{rest}")


def rename(
    state: Mapping[str, Tensor], names: Mapping[str, str], *, left_out: tuple[str, ...], origin: str
) -> dict[str, Tensor]:
    """The tensors of a state dict under their new names, in float32. Raises as `check_names` does.

    `left_out`: prefixes of tensors to drop, such as those of heads.
    """
    check_names(state, names, [name for name in state if name.startswith(left_out)], origin=origin)
    return {new: state[name].float() for name, new in names.items()}


def add_unknown_rows(words: Tensor, *, unknown: int, size: int) -> Tensor:
    """Word embeddings [n, dim] with copies of the unknown token's up to `size` rows."""
    return torch.cat([words, words[unknown].expand(size - len(words), -1)])
