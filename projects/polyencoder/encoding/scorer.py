"""`Scorer`: encodes and scores texts with an `Encoder`, of torch or of ONNX graphs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from typing_extensions import Self  # typing's, from Python 3.11 on

from polyencoder.checks import check_candidates, check_choice, check_count, check_device, check_texts
from polyencoder.config import VectorKind
from polyencoder.encoding.encoder import BATCH_SIZE, CONTEXTS, WITH_TOKENS, Encoder
from polyencoder.encoding.protocol import Context, Dialogue, TextRanker
from polyencoder.encoding.tokens import DistinctCandidates, find_distinct_candidates, tokenize_candidates
from polyencoder.errors import InputError
from polyencoder.guesses import hint_arguments
from polyencoder.packages import require
from polyencoder.progress import create_progress
from polyencoder.search.contexts import Array, Contexts
from polyencoder.search.late import TokenVectors
from polyencoder.search.scores import check_scores
from polyencoder.text.dialogue import check_contexts
from polyencoder.text.encoder import TextEncoder

if TYPE_CHECKING:
    import torch

    from polyencoder.modeling.base import RankerModel

_REMEMBERED = 1 << 12  # candidates of the latest list, at most
_TEXTS = 1 << 9  # candidates of several contexts whose token vectors are in memory at once: more are slower


@hint_arguments
class Scorer:
    """Implements `polyencoder.encoding.protocol.TextRanker`: texts in, arrays out.

    Args:
        model: a torch model, which is moved to the device, or an encoder.
        text: the tokenizer of a torch model.
        device: for a torch model; None for CUDA if there is one.
    """

    def __init__(
        self,
        model: RankerModel | Encoder,
        text: TextEncoder | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, Encoder):
            require("torch")
            from polyencoder.encoding.torch_encoder import TorchEncoder

            assert text is not None
            model = TorchEncoder(model, text, device=device)
        self.encoder: Encoder = model
        self._latest: tuple[Any, list[str], DistinctCandidates] | None = None

    @property
    def model(self) -> Any:
        """The `RankerModel`, or the `GraphModel` of ONNX graphs."""
        return self.encoder.model

    @property
    def text(self) -> TextEncoder:
        return self.encoder.text

    @property
    def device(self) -> Any:
        """The device of torch; "cpu" or "cuda" for ONNX graphs."""
        return self.encoder.device

    def to(self, device: torch.device | str) -> Self:
        """Moves the torch model to a device, and returns the ranker. InputError for ONNX graphs, which stay."""
        self.model.parameters()  # raises it
        device = check_device(device)
        self.encoder.model, self.encoder.device = self.model.to(device), device
        return self

    def __repr__(self) -> str:
        model, config = self.model, self.model.config
        size, dtype = self.encoder.facts
        dimensions = f"{model.dim} dimensions" if model.has_vectors else ""
        parts = [config.architecture, str(config.backbone.get("model_type", "")), size, dimensions]
        return f"{type(self).__name__}({', '.join(part for part in (*parts, str(self.device), dtype) if part)})"

    def score(self, contexts: Sequence[Dialogue], candidates: Sequence[str]) -> Array:
        """Scores every candidate for every context: float32 [contexts, candidates]; equal tokens have equal scores."""
        candidates = check_candidates("candidates", candidates)
        if not candidates:
            raise InputError("no candidate to rank: the list of candidates is empty")
        ids, row_of = self._find_distinct(candidates)
        scores = self.encoder.score_ids(tokenize_contexts(self.text, check_contexts(contexts)), ids)
        return scores if len(ids) == len(candidates) else scores[:, [row_of[text] for text in candidates]]

    def _find_distinct(self, candidates: list[str]) -> DistinctCandidates:
        """`find_distinct_candidates`, remembered for the latest list: all turns of a chat rank the same list."""
        latest = self._latest
        if latest is None or latest[0] is not self.text.config or latest[1] != candidates:
            latest = self.text.config, candidates, find_distinct_candidates(self.text, candidates)
            self._latest = latest if len(candidates) <= _REMEMBERED else None
        return latest[2]

    def encode_contexts(self, contexts: Sequence[Dialogue]) -> Contexts:
        """Encodes contexts: [contexts, codes, dim] with their mask. Not for cross-encoders.

        A late-interaction encoder's also hold a vector of each token, all in memory: for many contexts, `encode` with
        the kind "context" gives their vectors alone.
        """
        self.model.check_has_vectors()
        return self.encoder.encode_contexts(tokenize_contexts(self.text, check_contexts(contexts)))

    def encode_candidates(self, candidates: Sequence[str], *, batch_size: int = BATCH_SIZE) -> Array:
        """Encodes candidates: float32 [candidates, dim]. Not for cross-encoders."""
        texts = check_texts("candidates", candidates)
        size = check_count("batch_size", batch_size)
        self.model.check_has_vectors()
        return self.encoder.encode_candidates(tokenize_candidates(self.text, texts, remember=True), batch_size=size)

    def encode(
        self,
        texts: Sequence[Dialogue],
        *,
        kind: VectorKind = "pooled",
        normalize: bool = False,
        batch_size: int = BATCH_SIZE,
        progress: bool | None = False,
    ) -> Array:
        """Encodes each text as one float32 vector, [texts, dim], in the order of the texts. Not for cross-encoders.

        Args:
            texts: at least one; candidates, or contexts, which may be lists of turns or messages.
            kind: "pooled", for transfer to other tasks: the encoder's pooled output; for a ConveRT r_x, the reduced
                sequence of the last utterance before feed-forward 2. "context" and "candidate": the vectors whose
                inner products are scores.
            normalize: scale them to length 1.
            batch_size: maximum texts of a batch; texts of similar length are batched, with a limit on tokens.
            progress: show a progress bar on standard error.

        Raises:
            InputError: no texts or an invalid one, or the model has no such vector: a cross-encoder none at all, a
                poly-encoder several per context (`encode_contexts`), ONNX graphs no pooled output.
        """
        check_choice("kind", kind, get_args(VectorKind))
        size, model = check_count("batch_size", batch_size), self.model
        model.check_has_vectors()
        if kind == "context" and not model.has_one_vector:
            raise InputError(
                f"a {model.title} has several vectors of a context, which `encode_contexts` gives; ask for another "
                "kind",
                argument="kind",
            )
        candidates = check_candidates("texts", texts) if kind == "candidate" else []
        contexts = check_contexts(texts, name="text") if kind != "candidate" else []
        if not candidates and not contexts:
            raise InputError("no text to encode: the list of texts is empty")
        ids = tokenize_candidates(self.text, candidates, remember=True) or tokenize_contexts(self.text, contexts)
        encoder = self.encoder
        with create_progress(step="encoding", total=len(texts), unit="texts", show=progress) as bar:
            if kind == "candidate":
                vectors = encoder.encode_candidates(ids, batch_size=size, progress=bar.update)
            elif kind == "pooled":
                vectors = encoder.encode_pooled(ids, batch_size=size, progress=bar.update)
            else:
                parts, chunk_size = [], CONTEXTS if model.token_dim is None else WITH_TOKENS
                for start in range(0, len(ids), chunk_size):
                    encoded = encoder.encode_contexts(ids[start : start + chunk_size], batch_size=size)
                    parts.append(encoded.context_vectors)
                    bar.update(len(encoded))
                vectors = np.concatenate(parts)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12) if normalize else vectors

    def encode_query(self, queries: str | Sequence[Dialogue], **options: Any) -> Array:
        """`encode` with the kind "context", as sentence-transformers names it; for one text its vector alone, [dim]."""
        return self._encode_any(queries, kind="context", **options)

    def encode_document(self, documents: str | Sequence[str], **options: Any) -> Array:
        """`encode` with the kind "candidate", as sentence-transformers names it; for one text its vector, [dim]."""
        return self._encode_any(documents, kind="candidate", **options)

    def _encode_any(self, texts: str | Sequence[Dialogue], **options: Any) -> Array:
        return self.encode([texts], **options)[0] if isinstance(texts, str) else self.encode(texts, **options)


def tokenize_contexts(text: TextEncoder, contexts: Sequence[Context]) -> list[array[int]]:
    """The tokens of contexts, at least one. InputError without any."""
    if not contexts:
        raise InputError("no context to encode: the list of contexts is empty")
    return [array("i", text.tokenize_context(turns)) for turns in contexts]


def score_lists(ranker: TextRanker, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> list[Array]:
    """Scores each context's list of candidates: [candidates] of each. Equal tokens score alike."""
    ids, row_of = find_distinct_candidates(ranker.text, chain.from_iterable(lists))
    index = np.full((len(lists), max(map(len, lists), default=0)), -1)
    for row, texts_of_row in enumerate(lists):
        index[row, : len(texts_of_row)] = [row_of[text] for text in texts_of_row]
    scores = ranker.encoder.score_ids(tokenize_contexts(ranker.text, contexts), ids, index)
    return [row[: len(texts)] for row, texts in zip(scores, lists, strict=True)]


def score_by_tokens(
    ranker: TextRanker,
    contexts: Contexts,
    lists: Sequence[Sequence[str]],
    *,
    stored: Callable[[Iterable[str]], Mapping[str, TokenVectors]] | None = None,
) -> list[list[float]]:
    """The scores of each context's candidates, `lists`, by token vectors; those not in `stored` are read together."""
    encoder, scores = ranker.encoder, list[list[float]]()
    chunk_size = max(1, _TEXTS // max(1, *map(len, lists)))
    for start in range(0, len(lists), chunk_size):
        part = lists[start : start + chunk_size]
        distinct = dict.fromkeys(chain.from_iterable(part))
        read = {} if stored is None else {**stored(distinct)}
        if new := [candidate for candidate in distinct if candidate not in read]:
            ids = ranker.text.tokenize_candidates(new, remember=False)
            read |= zip(new, encoder.cache_candidates(ids), strict=True)
        for row, candidates in enumerate(part, start=start):
            row_scores = (
                encoder.rescore(contexts.select([row]), [read[candidate] for candidate in candidates])[0]
                if candidates
                else np.empty(0)
            )
            scores.append(check_scores(row_scores).tolist())
    return scores
