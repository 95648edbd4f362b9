"""Other functions than torch's inside models that others wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from polyencoder.modeling.cpu.attention import attention
from polyencoder.modeling.cpu.dropout import dropout
from polyencoder.modeling.cpu.products import ONEDNN_IS_FASTER, linear

__all__ = ["Instead", "fast_functions"]

Function = Callable[..., Any]


class Instead(TorchFunctionMode):
    """Within it functions of torch's are others, whichever model calls them. The others call torch's own."""

    def __init__(self, functions: Mapping[Function, Function]) -> None:
        super().__init__()
        self.functions = functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.functions.get(func, func)(*args, **(kwargs or {}))


def fast_functions(attention: Function = attention) -> Instead:
    """Within it a model on a CPU computes with the fastest functions there are, and with this attention."""
    functions: dict[Function, Function] = {F.scaled_dot_product_attention: attention, F.dropout: dropout}
    if ONEDNN_IS_FASTER and not torch.is_autocast_enabled("cpu"):  # in bfloat16 torch itself uses oneDNN
        functions[F.linear] = linear
    return Instead(functions)
