"""`Scorer`: encodes and scores texts, with a model and its tokenizer on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Literal, get_args, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from polyencoder.checks import check_choice, checked_candidates, checked_count, checked_device, checked_texts
from polyencoder.config import VectorKind
from polyencoder.encoding.encode import (
    candidate_ids,
    distinct_candidates,
    encode_candidates,
    encode_contexts,
    encode_pooled,
)
from polyencoder.encoding.protocol import Context, Dialogue, TextRanker
from polyencoder.encoding.reading import CandidateReader
from polyencoder.errors import InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.mode import in_evaluation
from polyencoder.progress import progress_bar
from polyencoder.scoring import ContextEncoding, check_scores
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.search import late
from polyencoder.text import TextEncoder, TokenBatch
from polyencoder.text.dialogue import checked_contexts

_CONTEXTS = 1 << 10  # whose vectors are in memory at once
_WITH_TOKENS = 1 << 7  # the same, where the vectors of their tokens are kept, too
_TEXTS = 1 << 11  # candidates of several contexts whose token vectors are in memory at once
_PAIRS = 1 << 15  # of contexts and candidates whose tokens are in memory at once


class Scorer:
    """Implements `polyencoder.encoding.protocol.TextRanker` for a torch model or ONNX graphs.

    The model is moved to the device. Dropout is off; the model's mode is unchanged.
    """

    def __init__(self, model: RankerModel, text: TextEncoder, *, device: torch.device | str | None = None) -> None:
        self.device = checked_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model = model.to(self.device)
        self.text = text
        self.reader = CandidateReader()

    def __repr__(self) -> str:
        model, config = self.model, self.model.config
        weights = list(model.parameters())
        parts = [
            config.architecture,
            str(config.backbone.get("model_type", "")),
            f"{sum(weight.numel() for weight in weights) / 1e6:.1f}M parameters",
            f"{model.dim} dimensions" if model.has_vectors else "",
            str(self.device),
            str(weights[0].dtype).removeprefix("torch."),
        ]
        return f"{type(self).__name__}({', '.join(part for part in parts if part)})"

    def score(self, contexts: Sequence[Dialogue], candidates: Sequence[str]) -> Tensor:
        """Scores every candidate for every context: [contexts, candidates], float32, on the CPU.

        Candidates with the same tokens are read once, and have equal scores.
        """
        candidates = checked_candidates("candidates", candidates)
        if not candidates:
            raise InputError("no candidate to rank: the list of candidates is empty")
        texts, place = distinct_candidates(self.text, candidates)
        scores = score_texts(self, checked_contexts(contexts), texts)
        return scores if len(texts) == len(candidates) else scores[:, [place[text] for text in candidates]]

    @torch.inference_mode()
    def encode_contexts(self, contexts: Sequence[Dialogue]) -> ContextEncoding:
        """Encodes contexts: [contexts, codes, dim] with their mask. Not for cross-encoders.

        Those of a late-interaction encoder also keep a vector of each token, all in memory: for many contexts `encode`
        with the kind "context" gives their vectors alone.
        """
        self.model.check_has_vectors()
        model, turns = self.model, checked_contexts(contexts)
        with in_evaluation(model):
            return encode_contexts(model, self.text, turns)

    @torch.inference_mode()
    def encode_candidates(self, candidates: Sequence[str], *, batch_size: int = 256) -> Tensor:
        """Encodes candidates: [candidates, dim]. Not for cross-encoders."""
        texts = checked_texts("candidates", candidates)
        size = checked_count("batch_size", batch_size)
        model = self.model
        model.check_has_vectors()
        with in_evaluation(model):
            return encode_candidates(model, self.text, texts, batch_size=size)

    @torch.inference_mode()
    def _read(self, candidates: Sequence[str]) -> Tensor:
        """Like `encode_candidates`, with the vectors that scores were computed from, if they are still cached."""
        model = self.model
        model.check_has_vectors()
        ids = candidate_ids(self.text, candidates, remember=True)
        if not self.reader.fits(model, ids):
            return self.encode_candidates(candidates)
        with in_evaluation(model):
            return torch.stack([one.vector for one in self.reader(model, self.text, ids)])

    @overload
    def encode(
        self,
        texts: Sequence[Dialogue],
        *,
        kind: VectorKind = ...,
        normalize: bool = ...,
        batch_size: int = ...,
        progress: bool | None = ...,
        as_tensor: Literal[False] = ...,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: Sequence[Dialogue],
        *,
        kind: VectorKind = ...,
        normalize: bool = ...,
        batch_size: int = ...,
        progress: bool | None = ...,
        as_tensor: Literal[True],
    ) -> Tensor: ...

    @torch.inference_mode()
    def encode(
        self,
        texts: Sequence[Dialogue],
        *,
        kind: VectorKind = "pooled",
        normalize: bool = False,
        batch_size: int = 256,
        progress: bool | None = False,
        as_tensor: bool = False,
    ) -> np.ndarray | Tensor:
        """Encodes each text as one float32 vector. Not for cross-encoders.

        Args:
            texts: at least one; candidates, or contexts, which may be lists of turns or messages.
            kind: "pooled", for transfer to other tasks: the encoder's pooled output; for a ConveRT r_x, the reduced
                sequence of the last utterance before feed-forward 2. "context" and "candidate": the vectors whose
                inner products are scores.
            normalize: scale them to length 1.
            batch_size: the most texts of a batch; texts of similar length are batched, with a limit on tokens.
            progress: show a progress bar on standard error.
            as_tensor: return a tensor on the model's device, not a numpy array.

        Returns:
            [texts, dim], in the order of the texts.

        Raises:
            InputError: no texts or an invalid one, or the model has no such vector: a cross-encoder none at all, a
                poly-encoder several per context (`encode_contexts`), ONNX graphs no pooled output.
        """
        check_choice("kind", kind, get_args(VectorKind))
        size, model = checked_count("batch_size", batch_size), self.model
        model.check_has_vectors()
        if kind == "context" and not model.has_one_vector:
            raise InputError(
                f"a {model.title} has several vectors of a context, which `encode_contexts` gives; ask for another "
                "kind",
                argument="kind",
            )
        candidates = checked_candidates("texts", texts) if kind == "candidate" else []
        contexts = checked_contexts(texts, name="text") if kind != "candidate" else []
        if not candidates and not contexts:
            raise InputError("no text to encode: the list of texts is empty")

        def one_of_context(tokens: TokenBatch) -> Tensor:
            return model.context_vectors(model.encode_context(tokens))

        bar = progress_bar(step="encoding", total=len(texts), unit="texts", show=progress)
        with in_evaluation(model), bar:
            if candidates:
                vectors = encode_candidates(model, self.text, candidates, batch_size=size, progress=bar.update)
            else:
                encode = model.pooled if kind == "pooled" else one_of_context
                vectors = encode_pooled(encode, model, self.text, contexts, batch_size=size, progress=bar.update)
        vectors = vectors.float()
        vectors = torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors
        return vectors if as_tensor else vectors.cpu().numpy()


@torch.inference_mode()
def score_texts(
    ranker: TextRanker, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor | None = None
) -> Tensor:
    """Scores candidates for each context, with a ranker of any architecture.

    A cross-encoder batches the pairs of all contexts by length; equal texts are tokenized once. Other architectures
    encode each context and each candidate once.

    Args:
        candidates: distinct texts.
        index: [contexts, n], each context's candidates as positions in `candidates`; negative is padding, which
            scores -inf. None to score every candidate for every context.

    Returns:
        [contexts, n], or [contexts, candidates] without an index; float32, on the CPU.

    Raises:
        InputError: a score is nan.
    """
    model, text, device = ranker.model, ranker.text, ranker.device
    at_once, parts = _CONTEXTS, []
    read: list[TokenVectors] = []
    with in_evaluation(model):
        # a model with vectors encodes shared candidates once for many contexts
        if model.reads_pairs and (index is not None or not model.has_vectors):
            at_once = max(1, _PAIRS // max(1, len(candidates) if index is None else index.size(1)))
        apart = index is None and (model.token_dim is not None or not model.reads_pairs)
        ids = candidate_ids(text, candidates, remember=True) if apart else []
        if ids and ranker.reader.fits(model, ids):
            read = ranker.reader(model, text, ids)
            at_once = _CONTEXTS if model.token_dim is None else _WITH_TOKENS
        elif model.reads_pairs:
            texts = text.candidates(candidates).to(device)
        else:
            vectors = encode_candidates(model, text, candidates)
        for i in range(0, max(len(contexts), 1), at_once):
            some = contexts[i : i + at_once]
            columns = None if index is None else index[i : i + at_once].to(device)
            if read:
                scores = model.rescore(encode_contexts(model, text, some), read)
            elif model.reads_pairs:
                scores = model(text.contexts(some).to(device), texts, columns)
            else:
                scores = model.score(encode_contexts(model, text, some), vectors)
            check_scores(scores)
            if columns is not None and not model.reads_pairs:
                scores = scores.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -torch.inf)
            parts.append(scores.float().cpu())
    return torch.cat(parts)


def score_lists(ranker: TextRanker, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> list[Tensor]:
    """Scores each context's own candidates, by `score_texts`: [candidates] of each list. Equal tokens score alike."""
    texts, place = distinct_candidates(ranker.text, chain.from_iterable(lists))
    places = [torch.tensor([place[text] for text in own], dtype=torch.int64) for own in lists]
    index = pad_sequence(places, batch_first=True, padding_value=-1)
    scores = score_texts(ranker, contexts, texts, index)
    return [row[: len(own)] for row, own in zip(scores, lists, strict=True)]


@torch.inference_mode()
def score_by_tokens(
    ranker: TextRanker,
    contexts: ContextEncoding,
    lists: Sequence[Sequence[str]],
    *,
    stored: Callable[[Iterable[str]], Mapping[str, late.TokenVectors]] | None = None,
) -> list[list[float]]:
    """The scores of each context's own candidates by token vectors; those of several contexts are read together.

    Args:
        contexts: as this ranker encoded them, with their tokens.
        stored: texts -> the vectors of those that need not be read.
    """
    model, text, scores = ranker.model, ranker.text, []
    at_once = max(1, _TEXTS // max(map(len, lists)))
    with in_evaluation(model):
        for first in range(0, len(lists), at_once):
            some = lists[first : first + at_once]
            distinct = dict.fromkeys(candidate for own in some for candidate in own)
            known = {} if stored is None else stored(distinct)
            read = {
                candidate: TokenVectors(*(torch.from_numpy(array).to(ranker.device) for array in vectors))
                for candidate, vectors in known.items()
            }
            if new := [candidate for candidate in distinct if candidate not in read]:
                ids = text.candidate_ids(new, remember=False)
                read |= zip(new, ranker.reader(model, text, ids), strict=True)
            for row, own in enumerate(some, start=first):
                found = model.rescore(contexts.select(row), [read[one] for one in own]) if own else torch.empty(1, 0)
                check_scores(found)
                scores.append(found[0].tolist())
    return scores
