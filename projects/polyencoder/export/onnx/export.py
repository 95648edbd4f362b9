"""Exports a ranker's transformers as ONNX graphs, each checked against torch.

What an exporter could get wrong (a length or a batch size frozen into the graph, a mask taken for all true) the check
would see: it runs texts of other lengths and batches of other sizes than the exporter did.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from polyencoder.checkpoint import read_folder_config, read_stored_weights
from polyencoder.config import RankerConfig
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint
from polyencoder.encoding.graph import Graph, make_inputs
from polyencoder.encoding.graph_files import DESCRIPTION, Description, get_int8_name
from polyencoder.encoding.protocol import TextRanker
from polyencoder.errors import CheckpointError, ConfigError, InputError, get_first_line
from polyencoder.export.onnx.exporters import prepare_for_graphs, write_graph
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.export_steps import Step
from polyencoder.packages import require
from polyencoder.storage.digests import compute_file_digest, compute_weights_fingerprint
from polyencoder.storage.names import CONFIG, TOKENIZER, WEIGHTS
from polyencoder.storage.publish import publishing
from polyencoder.text.context import join_pair, surround
from polyencoder.text.encoder import TextEncoder, read_tokenizer

TOLERANCE = 1e-4  # the largest deviation from torch, relative to the largest value
LARGEST = 2**31 - 2**24  # bytes of weights, with room for the rest: the file format ends at 2 GiB

Rows = Sequence[tuple[Sequence[int], Sequence[int]]]
"""A batch: the token ids and the segments of each sequence."""

CHECK_TEXTS = (
    "hello",
    "i like to ski in the mountains .",
    "That is great! My brother likes to ski too, but he broke his leg last winter and now he watches it on TV.",
    "What's the best way to learn Python in 2 weeks?  Are there any good (free) books about it?",
    "The train from Zurich to Milan leaves at 9:33 and takes the Gotthard base tunnel, which is 57 km long; it was "
    "opened in June 2016. The seats on the right have the better view of the lake.",
)


def export_onnx(
    ranker: TextRanker, folder: str | os.PathLike[str], *, check_texts: Sequence[str] | None = None
) -> None:
    """Exports a ranker as ONNX graphs, for `Ranker.from_pretrained(folder, backend="onnx")`.

    A bi-, poly- or late-interaction encoder becomes `context.onnx` and `candidates.onnx`, a cross-encoder
    `scorer.onnx`; `polyencoder.modeling.export_steps` defines their inputs and outputs. Weights of torch are
    neither needed nor written.

    Args:
        ranker: a ranker of torch.
        folder: made if it is not there. int8 graphs of an earlier export in it are removed.
        check_texts: texts like those that the ranker is for, on which the graphs are compared with torch, besides a
            few of our own.

    Raises:
        CheckpointError: a graph deviates from torch by more than 1e-4 of the largest value, or the folder holds another
            model's weights. Nothing is left behind.
        ConfigError: a package is missing, or the model is too large for an ONNX file.
        InputError: the ranker is itself made of graphs or has rounded weights, or a check text is empty.
    """
    target = Path(folder)
    require("onnxruntime", extra="onnx")
    model, text = _copy_plain(ranker.model), ranker.text
    texts = list(CHECK_TEXTS) + list(check_texts or ())
    if not all(sample.strip() for sample in texts):
        raise InputError("a check text is empty; give texts with words in them")
    weights = compute_weights_fingerprint(model.state_dict())
    _check_model_exists(target, model, text, weights)
    steps, traced = model.export_steps(), prepare_for_graphs(model).export_steps()
    example, batches = _build_token_batches(list(steps.values()), text, texts, model.config)
    differences, digests = dict[str, float](), dict[str, str]()
    with publishing(target, remove=map(get_int8_name, steps)) as staging:
        for name, step in steps.items():
            path = staging / name
            write_graph(traced[name], _make_inputs(step, example, pad_id=text.pad_id), path)
            differences[name] = _check(step.eval(), batches, path, name=str(target / name), pad_id=text.pad_id)
            digests[name] = compute_file_digest(path)
        if not (target / WEIGHTS).is_file():  # else these exist, and the weights hold their digests
            for name, content in ((CONFIG, model.config.to_json()), (TOKENIZER, text.format_tokenizer_json())):
                (staging / name).write_text(content, encoding="utf-8")
        candidates = compute_candidate_fingerprint(model, text) if model.has_vectors else None
        score = {name: weight.tolist() for name, weight in model.export_weights().items()} or None
        described = Description(
            weights=weights,
            candidates=candidates,
            differences=differences,
            graphs=digests,
            has_one_vector=model.has_one_vector,
            score=score,
            tokens=model.token_fingerprint,
        )
        (staging / DESCRIPTION).write_text(described.to_json(), encoding="utf-8")


def _check_model_exists(target: Path, model: RankerModel, text: TextEncoder, weights: str) -> None:
    """Raises CheckpointError if the folder holds another torch model."""
    remedy = "export to another folder, or save this ranker there first"
    check_weights(target, weights, remedy=remedy)
    if (target / WEIGHTS).is_file() and (
        read_folder_config(target) != model.config
        or TextEncoder(read_tokenizer(target / TOKENIZER), text.config).compute_fingerprint()
        != text.compute_fingerprint()
    ):
        raise CheckpointError(f"{target}: its configuration or tokenizer is not this ranker's; {remedy}")


def _copy_plain(model: RankerModel) -> RankerModel:
    """A copy of the model on the CPU in float32, for tracing and comparison."""
    model = model.merge_adapters()
    model.export_steps()  # raises InputError if it is made of graphs
    model = model.copy_for_saving()  # of a quantized model the rounded weights
    for tower in model.backbones:
        if tower.rounded:
            raise InputError("these weights were loaded in low precision: load the ranker without dtype to export it")
        if sum(parameter.numel() * 4 for parameter in tower.parameters()) > LARGEST:
            raise ConfigError(
                "the model is too large for ONNX: a file holds at most 2 GiB, 536 million float32 weights"
            )
    if all(weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in model.parameters()):
        return model
    return copy.deepcopy(model).to("cpu", torch.float32)


def _build_token_batches(
    steps: Sequence[Step], text: TextEncoder, texts: list[str], config: RankerConfig
) -> tuple[Rows, list[Rows]]:
    """A batch to trace with, and batches for checks: a short sequence, a long one, and all together.

    The trace must see the longest possible sequence: some kinds of codes are min(codes, length) in number, of which the
    trace keeps the side that it saw.
    """
    words = [token for ids in text.tokenize(texts) for token in ids]

    def tokenize_longest(limit: int) -> list[int]:
        repeated = words * (limit // len(words) + 1)
        if not text.config.surround:
            return repeated[:limit]
        return surround(repeated, start=text.start_id, end=text.end_id, max_tokens=limit)

    last = tokenize_longest(text.config.text_truncate)
    if any(step.separator is not None for step in steps):
        last = [*last, *text.separator_ids, *last]
    sequences = [*(text.tokenize_context([sample]) for sample in texts), text.tokenize_context(texts), last]
    rows = [(ids, [0] * len(ids)) for ids in sequences]
    if any("segments" in step.inputs for step in steps):
        seconds = [
            *text.tokenize_candidates([*reversed(texts), texts[0]]),
            tokenize_longest(text.config.label_truncate),
        ]
        pair = partial(join_pair, start=config.candidate_start, max_tokens=config.pair_truncate)
        rows = [pair(first, second) for first, second in zip(sequences, seconds, strict=True)]
    by_length = sorted(rows, key=lambda row: len(row[0]))
    return [by_length[-1], by_length[1]], [by_length[:1], by_length[-1:], by_length]


def _make_inputs(step: Step, rows: Rows, *, pad_id: int) -> tuple[Tensor, ...]:
    ids, segments = zip(*rows, strict=True)
    arrays = make_inputs(ids, segments, pad_id=pad_id, separator=step.separator)
    return tuple(torch.from_numpy(arrays[name]) for name in step.inputs)


def _check(step: Step, batches: list[Rows], path: Path, *, name: str, pad_id: int) -> float:
    """The graph's deviation from torch, relative to the largest value; an error if it is too large."""
    graph = Graph(path, pad_id=pad_id, separator=step.separator)
    deviations, largest = [], 0.0
    for rows in batches:
        with torch.no_grad():
            inputs = _make_inputs(step, rows, pad_id=pad_id)
            expected = _flatten(step, dict(zip(step.outputs, step(*inputs), strict=True)), mask=inputs[1])
        try:
            outputs = graph(*zip(*rows, strict=True))
        except Exception as error:  # onnxruntime's own exceptions share no base but Exception
            raise CheckpointError(
                f"{name}: onnxruntime cannot run the graph ({get_first_line(error)}), so nothing was written: this "
                "backbone cannot be exported with these versions of torch and transformers"
            ) from error
        actual = _flatten(step, {name: torch.from_numpy(output) for name, output in outputs.items()}, mask=inputs[1])
        same_shape = actual.shape == expected.shape
        deviations.append((actual - expected).abs().max().item() if same_shape else float("inf"))
        largest = max(expected.abs().max().item(), largest)
    relative = torch.tensor(deviations).max().item() / (largest or 1.0)  # Python's max would lose a nan
    if not relative <= TOLERANCE:
        raise CheckpointError(
            f"{name}: the graph deviates from torch by {relative:.1e} of the largest value (at most {TOLERANCE:.0e} is "
            "let through), so nothing was written: this backbone cannot be exported with these versions of torch and "
            "transformers"
        )
    return relative


def _flatten(step: Step, outputs: dict[str, Tensor], *, mask: Tensor) -> Tensor:
    """The values of a step's outputs without padding, flattened; `mask` is the tokens'."""
    masks = {step.list_axes("mask"): mask}
    if "codes_mask" in outputs:
        masks[step.list_axes("codes_mask")] = outputs.pop("codes_mask")
    pairs = [(values, masks.get(step.list_axes(name))) for name, values in outputs.items()]
    return torch.cat([(values if mask is None else values[mask]).flatten() for values, mask in pairs])


def check_weights(folder: Path, expected: str, *, remedy: str) -> None:
    """Raises CheckpointError if the folder's torch weights have another fingerprint."""
    if not (folder / WEIGHTS).is_file():
        return
    if compute_weights_fingerprint(read_stored_weights(folder, read_folder_config(folder))) != expected:
        raise CheckpointError(f"{folder / WEIGHTS}: not the weights of these graphs; {remedy}")
