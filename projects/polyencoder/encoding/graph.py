"""One ONNX graph, run by onnxruntime: lists of token ids in, numpy arrays out. Without torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from polyencoder.errors import CheckpointError, get_first_line
from polyencoder.packages import require
from polyencoder.search.contexts import stack_arrays
from polyencoder.text.batches import Array, group_lengths, pad_arrays

CPU = "CPUExecutionProvider"
BATCH_TOKENS = 1 << 14  # maximum tokens in memory at once, with padding
CALL_TOKENS = 1 << 10  # tokens of a call on a CPU: more of them no longer fit its caches
CALL_COST = 16  # fixed cost of a call on a CPU, in tokens


class Graph:
    """An ONNX graph of a ranker (`polyencoder.modeling.export_steps`)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        pad_id: int = 0,
        threads: int = 0,
        providers: Sequence[Any] = (CPU,),
        separator: int | None = None,
    ) -> None:
        """Opens a graph.

        threads: of onnxruntime; 0 for one per core. providers: its execution providers, best first. separator: the
        token between the two texts of a context, which the graph then takes separately, or the first alone.

        Raises:
            ConfigError: onnxruntime is not installed.
            CheckpointError: not a graph that onnxruntime can read.
        """
        runtime = require("onnxruntime", extra="onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors alone
        # A graph's threads would wait for more work by spinning, while the threads of the ranker's other graph compute
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._on_cpu = list(providers) == [CPU]
        # On a CPU, an addition merged with a normalisation or a GELU takes longer than the two operators
        slower = ["SkipLayerNormFusion", "BiasGeluFusion"] if self._on_cpu else []
        try:
            self._session = runtime.InferenceSession(
                os.fspath(path), options, providers=[*providers], disabled_optimizers=slower
            )
        except Exception as error:  # onnxruntime's own exceptions share no base but Exception
            raise CheckpointError(f"{os.fspath(path)}: not a readable ONNX graph ({get_first_line(error)})") from None
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._pad_id = pad_id
        self.separator = separator
        self.outputs = [node.name for node in self._session.get_outputs()]
        self.dims = {node.name: node.shape[-1] for node in self._session.get_outputs()}
        self.dim = self.dims[self.outputs[0]]

    @property
    def takes_both_texts(self) -> bool:
        """Whether the graph takes the two texts of a context separately (multi-context ConveRT)."""
        return "extra_ids" in self._inputs

    def __call__(
        self, sequences: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
    ) -> dict[str, Array]:
        """The graph's outputs by name, each [sequences, ...]; on a CPU sequences of like length run together."""
        if not self._on_cpu:
            return self._run(sequences, segments)
        groups = group_for_calls([len(ids) for ids in sequences])
        parts = [self._run([sequences[i] for i in rows], segments and [segments[i] for i in rows]) for rows in groups]
        if len(parts) == 1 and groups[0] == [*range(len(sequences))]:
            return parts[0]
        order = np.argsort([i for rows in groups for i in rows])
        return {name: stack_arrays([part[name] for part in parts])[order] for name in self.outputs}

    def _run(self, sequences: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None) -> dict[str, Array]:
        inputs = make_inputs(sequences, segments, pad_id=self._pad_id, separator=self.separator)
        feed = {name: array for name, array in inputs.items() if name in self._inputs}
        return dict(zip(self.outputs, self._session.run(None, feed), strict=True))


def group_for_calls(lengths: Sequence[int]) -> list[list[int]]:
    """Groups sequences of these lengths by index, with little padding and at most about `CALL_TOKENS` tokens each."""
    calls = []
    for rows in group_lengths(lengths, pass_cost=CALL_COST):
        size = max(CALL_TOKENS // max(lengths[rows[-1]], 1), 1)
        calls += [rows[start : start + size] for start in range(0, len(rows), size)]
    return calls


def make_inputs(
    sequences: Sequence[Sequence[int]],
    segments: Sequence[Sequence[int]] | None,
    *,
    pad_id: int,
    separator: int | None = None,
) -> dict[str, Array]:
    """The arrays for all possible inputs of a graph, by name. Takes the arguments of `Graph`."""
    inputs: dict[str, Array] = {}
    if separator is not None:
        last, extra = _split_contexts(sequences, separator)
        width = max(map(len, chain(last, extra)))
        inputs["ids"], inputs["mask"] = pad_arrays(last, pad_id=pad_id, width=width)
        inputs["extra_ids"], inputs["extra_mask"] = pad_arrays(extra, pad_id=pad_id, width=width)
    else:
        inputs["ids"], inputs["mask"] = pad_arrays(sequences, pad_id=pad_id)
    if segments is not None:
        inputs["segments"], _ = pad_arrays(segments, pad_id=0)
    return inputs


def _split_contexts(
    sequences: Sequence[Sequence[int]], separator: int
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Splits contexts at the first separator: the last utterances, and the earlier ones without separators."""
    last, extra = list[Sequence[int]](), list[Sequence[int]]()
    for ids in map(list, sequences):
        end = ids.index(separator) if separator in ids else len(ids)
        last.append(ids[:end])
        extra.append([token for token in ids[end:] if token != separator])
    return last, extra
