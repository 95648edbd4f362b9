"""Token sequences of examples: `[S] context [S] response [S]`, segment 0 and segment 1 (Section 4.1).

Or two sequences, `[S] context [S]` and `[S] response [S]`, as a bi-encoder reads them, of segment 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool
from polyencoder.pretraining.masking import IGNORED
from polyencoder.text.context import select_latest_utterances
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.tokens import pad

CONTEXT_SHARE = 4  # a response leaves a quarter of the tokens for its context


@dataclass(frozen=True)
class PairInput:
    """An input of one or two sequences: the tokens, the number of context tokens, and the targets.

    Without `targets` and `follows` there are two sequences, and the context's response is to be found among others.

    targets: the original token at each position, `IGNORED` where none is predicted. follows: whether the response does.
    """

    ids: Sequence[int]
    context: int
    targets: Sequence[int] | None = None
    follows: bool | None = None


@dataclass(frozen=True)
class PairBatch(Batch):
    """Sequences of contexts and responses, which have no candidates.

    contexts: the sequences with their segments. A batch has one of: targets, [batch, length]; follows, [batch], 1.0 or
    0.0; answers, [n]: the sequences are then n contexts followed by the different responses, and `answers` is the
    number of each context's response. position: in its source.
    """

    targets: Tensor | None = None
    follows: Tensor | None = None
    answers: Tensor | None = None
    position: tuple[int, int] = (0, 0)

    @property
    def has_choice(self) -> bool:
        """Whether there is a target: a batch's only response is always found."""
        return self.answers is None or len(self.contexts) > len(self.answers) + 1

    def to(self, device: torch.device) -> PairBatch:
        targets, follows, answers = (
            None if tensor is None else tensor.to(device, non_blocking=True)
            for tensor in (self.targets, self.follows, self.answers)
        )
        return replace(self, contexts=self.contexts.to(device), targets=targets, follows=follows, answers=answers)


def build_pair_input(
    text: TextEncoder, turns: Sequence[str], response: str, *, longest: int, apart: bool = False
) -> PairInput:
    """Joins the tokens of a context and a response, at most `longest`; with `apart` each has a start token.

    The response is kept whole where that leaves a quarter of the tokens, or all that the context has, and else loses
    its end; the latest turns of the context are kept, whole where possible. A cross-encoder reads the same tokens.
    """
    lines = select_latest_utterances(turns, size=text.config.history_size)
    ids, response_ids = text.tokenize(lines), text.tokenize([response])[0]
    start = [text.start_id] if apart else []  # of the response
    room = longest - 3 - len(start)  # start, end, end
    separator = text.separator_ids
    context_length = sum(map(len, ids)) + len(separator) * (len(ids) - 1)
    response_ids = response_ids[: room - min(context_length, room // CONTEXT_SHARE)]
    max_tokens = min(text.config.text_truncate, longest - len(start) - len(response_ids) - 1)
    context = text.tokenize_lines(lines, max_tokens=max_tokens)
    return PairInput([*context, *start, *response_ids, text.end_id], len(context))


def build_pair_batch(inputs: Sequence[PairInput], *, pad_id: int, position: tuple[int, int] = (0, 0)) -> PairBatch:
    """Pads inputs of one objective to a batch."""
    if inputs[0].targets is None and inputs[0].follows is None:
        return _build_split_batch(inputs, pad_id=pad_id, position=position)
    segments = [[0] * pair.context + [1] * (len(pair.ids) - pair.context) for pair in inputs]
    tokens = pad([pair.ids for pair in inputs], pad_id=pad_id, segments=segments)
    targets = follows = None
    if inputs[0].targets is not None:
        rows = np.full(tokens.ids.shape, IGNORED, dtype=np.int64)
        for row, pair in zip(rows, inputs, strict=True):
            assert pair.targets is not None
            row[: len(pair.targets)] = pair.targets
        targets = torch.from_numpy(rows)
    else:
        follows = torch.tensor([float(pair.follows is True) for pair in inputs])
    return PairBatch(tokens, CandidatePool([]), targets=targets, follows=follows, position=position)


def _build_split_batch(inputs: Sequence[PairInput], *, pad_id: int, position: tuple[int, int]) -> PairBatch:
    """Contexts, then their responses; equal responses are merged, so that none is another's negative."""
    responses: dict[tuple[int, ...], int] = {}
    answers = [responses.setdefault(tuple(pair.ids[pair.context :]), len(responses)) for pair in inputs]
    tokens = pad([*(pair.ids[: pair.context] for pair in inputs), *responses], pad_id=pad_id)
    return PairBatch(tokens, CandidatePool([]), answers=torch.tensor(answers), position=position)
