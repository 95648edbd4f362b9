"""Compares our functions for CPUs with torch's: linear layers, dropout and attention, at the sizes of two encoders.

    python -m benchmarks.cpu --json

Forward passes, and forward and backward passes, of `--tokens` tokens in sequences of 128. Linear layers are those of a
feed-forward block, in float32; attention is that of training: in bfloat16, and with dropout. The summary gives the
speed relative to torch's, and whether this processor uses our functions; rows of linear layers give their share of
torch's product rate (`torch.mm` alone). The last rows are training steps of an encoder of MiniLM's size on sequences of
40 to 300 tokens: their share of that rate, including attention's products. The summary also has bfloat16's speed
relative to float32's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import argument_parser, interleaved_ms, machine, print_report, use_threads
from benchmarks.rate import Shape, encoder_flops, product_rate, products
from polyencoder.modeling.cpu import attention as cpu_attention
from polyencoder.modeling.cpu.dropout import dropout
from polyencoder.modeling.cpu.products import linear, onednn_is_faster
from polyencoder.modeling.encoder_config import scratch_config
from polyencoder.modeling.loading import build_backbone
from polyencoder.text import pad

SIZES = {"minilm": 384, "bert-base": 768}
LENGTH, HEADS = 128, 12
Function = Callable[..., Tensor]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=9)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tokens, repeats = (512, 1) if flags.quick else (flags.tokens, flags.repeats)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for name, dim in SIZES.items():
        for case, (ours, torchs, inputs) in _cases(tokens, dim).items():
            for backward in (False, True):
                sides = {"ours": ours, "torch": torchs}
                work = {side: _work(function, inputs, backward=backward) for side, function in sides.items()}
                times = interleaved_ms(work, repeats=repeats)
                what = f"{case}, {name}, {'forward and backward' if backward else 'forward'}"
                row: dict[str, Any] = {"what": what, "ours_ms": times["ours"], "torch_ms": times["torch"]}
                if case == "linear":
                    product = Shape(tokens, dim, 4 * dim)
                    flops = (3 if backward else 1) * product.flops
                    row["share_of_product_rate"] = (
                        flops / product_rate([product], dtype=torch.float32) / (times["ours"] / 1e3)
                    )
                rows.append(row)
                ratios[what] = times["torch"] / times["ours"]
    for rate in (0.1, 0.0):
        steps = _steps(tokens, rate, repeats=repeats)
        rows += [{"what": f"a step of MiniLM's size, {name}, dropout {rate}"} | step for name, step in steps.items()]
        ratios[f"a step in bfloat16, dropout {rate}, beside float32"] = (
            steps["float32"]["ours_ms"] / steps["bfloat16"]["ours_ms"]
        )
    report = {
        "benchmark": "cpu",
        "machine": machine(),
        "settings": {"tokens": tokens, "repeats": repeats},
        "rows": rows,
        "summary": {**ratios, "linear layers are oneDNN's here": onednn_is_faster()},
    }
    print_report(report, as_json=flags.json)


def _steps(tokens: int, rate: float, *, repeats: int) -> dict[str, dict[str, float]]:
    """A forward and backward pass in each dtype: its milliseconds, and its rate, without padding, as a share of the
    rate of matrix products."""
    config = scratch_config(
        vocabulary_size=1000,  # few words: a table of 30,000 costs a small step as much as a layer
        dim=(dim := min(SIZES.values())),
        n_layers=6,
        n_heads=HEADS,
        ffn_dim=4 * dim,
        n_positions=512,
        dropout=rate,
        attention_dropout=rate,
    )
    backbone = build_backbone(config).train()
    lengths = torch.linspace(40, 300, max(2, tokens // 170)).long().tolist()
    batch = pad([[1 + place % 999 for place in range(length)] for length in lengths], pad_id=0)

    gradient = torch.randn(*batch.ids.shape, dim)

    def step(dtype: torch.dtype) -> None:
        backbone.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            outputs = backbone(batch)
        outputs.backward(gradient.to(outputs))

    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    times = interleaved_ms({name: partial(step, dtype) for name, dtype in dtypes.items()}, repeats=repeats)
    flops, shapes = encoder_flops(config, lengths, training=True), products(config, tokens=sum(lengths))
    return {
        name: {
            "ours_ms": times[name],
            "share_of_product_rate": flops / (times[name] / 1e3) / product_rate(shapes, dtype=dtype),
        }
        for name, dtype in dtypes.items()
    }


def _cases(tokens: int, dim: int) -> dict[str, tuple[Function, Function, list[Tensor]]]:
    """Our function, torch's, and the inputs of both."""
    hidden = torch.randn(tokens, dim)
    query, key, value = torch.randn(3, max(1, tokens // LENGTH), HEADS, LENGTH, dim // HEADS)
    halves = [tensor.bfloat16() for tensor in (query, key, value)]
    attention = F.scaled_dot_product_attention
    return {
        "linear": (linear, F.linear, [hidden, torch.randn(4 * dim, dim), torch.randn(4 * dim)]),
        "dropout": (lambda x: dropout(x, 0.1), lambda x: F.dropout(x, 0.1), [hidden]),
        "attention in bfloat16": (cpu_attention.attention, attention, halves),
        "attention with dropout": (
            partial(cpu_attention.attention_by_heads, dropout_p=0.1),
            partial(attention, dropout_p=0.1),
            [query, key, value],
        ),
    }


def _work(function: Function, inputs: Sequence[Tensor], *, backward: bool) -> Callable[[], Any]:
    leaves = [tensor.clone().requires_grad_(backward) for tensor in inputs]

    def work() -> None:
        output = function(*leaves)
        if backward:
            torch.autograd.grad(output, leaves, torch.ones_like(output))

    return work


if __name__ == "__main__":
    main()
