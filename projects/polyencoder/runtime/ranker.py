"""`Ranker`: ranks, scores and encodes with onnxruntime and numpy alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np

from polyencoder.calibration import DEPTH, Calibration, LeastProbability, least_probability, read_calibration
from polyencoder.calibration.relevance import best_first
from polyencoder.checks import check_choice, checked_candidates, checked_count
from polyencoder.encoding.protocol import Dialogue
from polyencoder.errors import InputError
from polyencoder.export.onnx.exported import Exported, graphs_folder
from polyencoder.export.onnx.files import Precision
from polyencoder.index.filters import Exactness, Filter, check_fields
from polyencoder.index.folder import FolderIndex
from polyencoder.index.grouping import grown
from polyencoder.index.hits import OWN_K, TOP_K, Hit, first_texts, reranked_hits
from polyencoder.index.meta import Fingerprints
from polyencoder.index.options import SearchOptions
from polyencoder.ranked import Ranked, with_probabilities
from polyencoder.search.contexts import Contexts
from polyencoder.search.late import ContextTokens, LateScore, TokenVectors
from polyencoder.search.scores import score
from polyencoder.storage.names import CANDIDATES, CONTEXT, SCORER
from polyencoder.text.batches import Array
from polyencoder.text.context import join_pair, lines_of, same
from polyencoder.text.dialogue import checked_contexts

T = TypeVar("T")
Kind = Literal["context", "candidate"]
ReadCandidates = Callable[[Sequence[Sequence[int]]], list[TokenVectors]]

_WITH_TOKENS = 1 << 7  # contexts, and as many candidates, the vectors of whose tokens are in memory at once
_OUTPUTS = 1 << 5  # contexts whose outputs of a graph, several times as large, are in memory at once


class Ranker:
    """Ranks candidates for a context with exported graphs, on a CPU.

    Its methods are those of `polyencoder.Ranker`, with numpy arrays in place of tensors.

    Examples:
        >>> ranker = Ranker.from_pretrained("folder-or-hub-id", precision="int8")
        >>> ranker.rank(["hi !"], ["do you ski ?", "hello , i love snow ."], top_k=1)
        [Ranked(index=1, text='hello , i love snow .', score=7.31)]
    """

    def __init__(self, exported: Exported) -> None:
        self.model = exported
        self.text = exported.text
        self.config = exported.config
        self.device = "cpu"
        self._by_tokens = None if exported.score is None else LateScore(exported.score)
        self.source: Path | None = None
        """The folder it was loaded from."""
        self.calibration: Calibration | None = None
        """Maps scores to probabilities; None unless `polyencoder calibrate` fitted it."""

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], *, precision: Precision = "float32", threads: int = 0
    ) -> Ranker:
        """Loads a ranker from a folder of `polyencoder export`, or a hub id with such graphs.

        Args:
            name: nothing is downloaded for a folder.
            precision: "int8" for the quantized graphs.
            threads: of onnxruntime; 0 for one per core.

        Raises:
            CheckpointError: the graphs are missing or damaged.
            ConfigError: the configuration or tokenizer cannot be used, or onnxruntime is not installed.
        """
        check_choice("precision", precision, get_args(Precision))
        folder = graphs_folder(name, precision=precision)
        ranker = cls(Exported.open(folder, precision=precision, threads=checked_count("threads", threads, least=0)))
        ranker.source = folder
        ranker.calibration = read_calibration(folder, cast(Any, ranker))
        return ranker

    def rank(
        self,
        context: Dialogue,
        candidates: Sequence[str],
        *,
        top_k: int | None = None,
        min_probability: LeastProbability | None = None,
    ) -> list[Ranked]:
        """Ranks candidates by score, best first; with `top_k` only the first `top_k`.

        The context is a text, a list of turns, or the messages of a chat (`[{"role": "user", "content": "hi"}]`).

        `min_probability` leaves out candidates below this probability, perhaps all: a number, or "auto" for the
        calibration's threshold. ConfigError if the model is not calibrated.
        """
        candidates = checked_candidates("candidates", candidates)
        top_k = None if top_k is None else checked_count("top_k", top_k)
        least = least_probability(self.calibration, min_probability, of=cast(Any, self))
        scores = self.score([context], candidates)[0]
        ranked = [Ranked(i, candidates[i], float(scores[i])) for i in best_first(scores)]
        ranked = with_probabilities(ranked, self.calibration, least=least, among=len(set(candidates)))
        return ranked[:top_k]

    def score(self, contexts: Sequence[Dialogue], candidates: Sequence[str]) -> Array:
        """Scores every candidate for every context: float32 [contexts, candidates].

        Candidates with the same tokens are read once, and have equal scores.
        """
        texts = checked_candidates("candidates", candidates)
        if not texts:
            raise InputError("no candidate to rank: the list of candidates is empty")
        place: dict[tuple[int, ...], int] = {}
        columns = [place.setdefault(tuple(ids), len(place)) for ids in self.text.candidate_ids(texts)]
        scores = self._scores(_turns_of(contexts), [*place])
        return scores if len(place) == len(texts) else scores[:, columns]

    def _scores(self, turns: Sequence[Sequence[str]], candidates_ids: Sequence[Sequence[int]]) -> Array:
        if not self.model.has_vectors:
            ids_of = map(self.text.context_ids, turns)
            return np.stack([self.score_ids([(ids, candidate) for candidate in candidates_ids]) for ids in ids_of])
        if self._by_tokens is None:
            return self.score_vectors(self._contexts(turns), self.encode_candidate_ids(candidates_ids))
        some = _parts(candidates_ids, _WITH_TOKENS)
        encoded = map(self._contexts, _parts(turns, _WITH_TOKENS))
        scores: Array = np.block([[self.rescore(one, self.read_candidate_ids(ids)) for ids in some] for one in encoded])
        return scores

    def score_ids(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], *, read: ReadCandidates | None = None
    ) -> Array:
        """Scores pairs of a context's and a candidate's token ids, with a model that reads pairs: float32 [pairs].

        A late-interaction encoder gets candidates from `read`, by default `read_candidate_ids`.
        """
        if self.model.has_vectors:
            return self._scores_by_tokens(pairs, read or self.read_candidate_ids)
        start, longest = self.config.candidate_start, self.config.pair_truncate
        joined = [join_pair(*both, start=start, max_tokens=longest) for both in pairs]
        return self.model.graphs[SCORER](*zip(*joined, strict=True))["scores"]

    def _scores_by_tokens(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], read: ReadCandidates) -> Array:
        """Scores pairs; each different context is read once."""
        places_of: dict[tuple[int, ...], list[int]] = {}
        for place, (ids, _) in enumerate(pairs):
            places_of.setdefault(tuple(ids), []).append(place)
        encoded, candidates = self.encode_context_ids([*places_of]), read([ids for _, ids in pairs])
        scores = np.empty(len(pairs), dtype=np.float32)
        for row, places in enumerate(places_of.values()):
            scores[places] = self.rescore(encoded.select([row]), [candidates[place] for place in places])[0]
        return scores

    def read_candidate_ids(self, ids: Sequence[Sequence[int]]) -> list[TokenVectors]:
        """Encodes candidates for `rescore`, from their token ids."""
        found = self.model.graphs[CANDIDATES](ids)
        return TokenVectors.of(ids, found["vectors"], found.get("tokens"))

    def rescore(self, contexts: Contexts, candidates: Sequence[TokenVectors]) -> Array:
        """Scores candidates that were read before for each encoded context: float32 [contexts, candidates]."""
        if self._by_tokens is None:
            return self.score_vectors(contexts, np.stack([one.vector for one in candidates]))
        return np.stack([self._by_tokens(one, candidates) for one in contexts.tokens or ()])

    def score_vectors(self, contexts: Contexts, candidates: Array) -> Array:
        """Scores encoded candidates [n, dim] for each encoded context: float32 [contexts, n]."""
        config = self.config
        return score(contexts, candidates, attention=config.poly_attention)

    def search(
        self,
        context: Dialogue,
        index: FolderIndex | str | os.PathLike[str],
        *,
        top_k: int = TOP_K,
        filter: Filter | None = None,
        exactness: Exactness | None = None,
        effort: int | None = None,
        list_length: int | None = None,
        tolerance: float | None = None,
        min_probability: LeastProbability | None = None,
        keep_turns: bool = False,
    ) -> list[Hit]:
        """Searches an index folder for the best candidates, best first.

        By scoring every candidate, or in an index with a FAISS index by its lists.

        A late-interaction encoder reranks the first 100 different texts by its full score, `Hit.rerank_score`.

        Args:
            context: its turns, oldest first, the messages of a chat, or a single text.
            index: `open_index(where)`, or its folder, which is then opened for this search alone.
            top_k: number of results; all candidates if there are fewer.
            filter: metadata fields and the value that each must have; a list of values means any of them.
            exactness: at least "exact", "certified" or "approximate" (default: the fastest that the index has).
            effort: of FAISS: ef_search of hnsw, nprobe of ivf (default: as the index was built).
            list_length: candidates proposed by each code, or group of codes (default: 4 k, at least 256).
            tolerance: maximum distance of codes in a group, as a share of their length (default: 0.4); 0 for none.
            min_probability: leave out hits below this probability, as in `rank`.
            keep_turns: keep candidates equal to a turn of the context (up to case and white space).

        Raises:
            InputError: the context is empty, `top_k` is below 1, or the filter is invalid.
            CheckpointError: the index is missing or damaged, or made by another model.
            ConfigError: `min_probability` without a calibration; a FAISS index without faiss; an option that does not
                fit the index.
        """
        options = SearchOptions(
            top_k=top_k,
            filter=filter,
            exactness=exactness,
            effort=effort,
            list_length=list_length,
            tolerance=tolerance,
        )
        turns = checked_contexts([context])
        if isinstance(index, FolderIndex):
            index.meta.check_model(self._fingerprints, where=index.address)  # another ranker may have opened it
        # an opened index stays open
        with nullcontext(index) if isinstance(index, FolderIndex) else self.open_index(index) as opened:
            search = self.searcher(opened, options, min_probability=min_probability, keep_turns=keep_turns)
            return search(self._contexts(turns), turns)[0]

    def searcher(
        self,
        index: FolderIndex,
        options: SearchOptions,
        *,
        min_probability: LeastProbability | None = None,
        keep_turns: bool = False,
        read: ReadCandidates | None = None,
    ) -> Callable[[Contexts, Sequence[Sequence[str]]], list[list[Hit]]]:
        """A function from encoded contexts and their turns to the hits of each; arguments and errors as of `search`.

        `read` is that of `score_ids`.
        """
        top_k, calibration = options.k(sys.maxsize), self.calibration and self.calibration.for_search
        least = least_probability(calibration, min_probability, of=cast(Any, self))
        by_tokens = self._by_tokens is not None
        texts = max(DEPTH if calibration else 0, OWN_K if by_tokens else 0)
        index.check(options)
        if len(index):
            check_fields(options.filter, has_field=index.has_field)

        def find(contexts: Contexts, turns: Sequence[Sequence[str]]) -> list[list[Hit]]:
            said = [set[str]() if keep_turns else lines_of(one) for one in turns]

            def search(places: Sequence[int], k: int) -> list[list[Hit]]:
                return index.search(contexts.select(places), options, top_k=k)

            def take(place: int, found: list[Hit], whole: bool) -> list[Hit] | None:
                hits = [hit for hit in found if same(hit.text) not in said[place]]
                # an index may have a text several times
                enough = len(hits) >= top_k and len({hit.text for hit in hits}) >= texts
                return hits if whole or enough else None

            k = max(top_k, texts) + max(map(len, said), default=0)
            found = grown(search, take, contexts=len(turns), k=k)
            if by_tokens:
                reader = read or self.read_candidate_ids
                found = [self._reranked(contexts.select([i]), hits, index, reader) for i, hits in enumerate(found)]
            among = index.count_texts(options.filter) if calibration else 0
            return [probable(hits, among)[:top_k] for hits in found]

        def probable(hits: list[Hit], among: int) -> list[Hit]:
            read = [hit for hit in hits if hit.rerank_score is not None] if by_tokens else hits  # the first ones
            known = with_probabilities(read, calibration, least=least, among=among, searched=True)
            return known if least is not None else [*known, *hits[len(read) :]]

        return find

    def _reranked(self, context: Contexts, hits: Sequence[Hit], index: FolderIndex, read: ReadCandidates) -> list[Hit]:
        """The hits of one context, its first `OWN_K` different texts by the full score."""
        first = first_texts(hits, OWN_K)
        texts = list(dict.fromkeys(hit.text for hit in hits[:first]))
        if not texts:
            return []
        known = index.token_vectors(texts, self.model.token_fingerprint)
        if new := [text for text in texts if text not in known]:
            known |= zip(new, read(self.text.candidate_ids(new)), strict=True)
        scores = self.rescore(context, [known[text] for text in texts])[0]
        if np.isnan(scores).any():
            raise InputError("the model's scores are nan: its weights, or the index, are damaged")
        return reranked_hits(hits, dict(zip(texts, scores.tolist(), strict=True)), first=first)

    def open_index(self, where: str | os.PathLike[str]) -> FolderIndex:
        """Opens the index folder that this model made, for many searches. Errors as in `search`."""
        return FolderIndex.open(where, self._fingerprints, attention=self.config.poly_attention)

    @cached_property
    def _fingerprints(self) -> Fingerprints:
        """Those of an index of this model. InputError for a cross-encoder."""
        self._check_has_vectors()
        return Fingerprints(self.model.candidate_fingerprint or "", self.text.fingerprint(contexts=False))

    def encode_contexts(self, contexts: Sequence[Dialogue]) -> Contexts:
        """Encodes contexts: [contexts, codes, dim] with their mask. Not for cross-encoders."""
        self._check_has_vectors()
        return self._contexts(_turns_of(contexts))

    def encode_candidates(self, candidates: Sequence[str]) -> Array:
        """Encodes candidates: float32 [candidates, dim]. Not for cross-encoders."""
        self._check_has_vectors()
        texts, graph = checked_candidates("candidates", candidates), self.model.graphs[CANDIDATES]
        if not texts:
            return np.empty((0, int(graph.dim)), dtype=np.float32)
        return self.encode_candidate_ids(self.text.candidate_ids(texts))

    def encode_candidate_ids(self, ids: Sequence[Sequence[int]]) -> Array:
        """Like `encode_candidates`, for token ids."""
        return self.model.graphs[CANDIDATES](ids)["vectors"]

    def encode(self, texts: Sequence[Dialogue], *, kind: Kind, normalize: bool = False) -> Array:
        """Encodes each text as one float32 vector, [texts, dim], in the order of the texts.

        Args:
            texts: at least one; candidates, or contexts, which may be lists of turns or messages.
            kind: "context" and "candidate": the vectors whose inner products are scores.
            normalize: scale them to length 1.

        Raises:
            InputError: no texts or an invalid one, or the model has no such vector: a cross-encoder none at all, a
                poly-encoder several per context (`encode_contexts`).
        """
        check_choice("kind", kind, get_args(Kind))
        if kind == "candidate":
            vectors = self.encode_candidates(cast("Sequence[str]", texts))
            if not len(vectors):
                raise InputError("no text to encode: the list of texts is empty")
        else:
            self._check_has_vectors()
            turns = _turns_of(texts)
            if not self.model.has_one_vector:
                raise InputError(
                    f"a {self.model.title} has several vectors of a context, which `encode_contexts` gives; ask for "
                    "another kind",
                    argument="kind",
                )
            parts = [turns] if self._by_tokens is None else _parts(turns, _WITH_TOKENS)
            vectors = np.concatenate([self._contexts(part).context_vectors for part in parts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12) if normalize else vectors

    def encode_context_ids(self, ids: Sequence[Sequence[int]]) -> Contexts:
        """Like `encode_contexts`, for token ids."""
        graph = self.model.graphs[CONTEXT]
        if self._by_tokens is not None:
            return Contexts.concatenated([_with_tokens(part, graph(part)) for part in _parts(ids, _OUTPUTS)])
        found = graph(ids)
        if graph.takes_both_texts:  # a multi-context ConveRT ranks by the first vector, that of both texts
            return Contexts(found["vectors"][:, :1])
        return Contexts(found["vectors"], found.get("codes_mask"))

    def _contexts(self, contexts: Sequence[Sequence[str]]) -> Contexts:
        return self.encode_context_ids([self.text.context_ids(turns) for turns in contexts])

    def _check_has_vectors(self) -> None:
        if not self.model.has_vectors:
            raise InputError("a cross-encoder has no vectors of contexts or candidates: it reads them together")


def _with_tokens(ids: Sequence[Sequence[int]], found: Mapping[str, Array]) -> Contexts:
    """The encoded contexts from what a late-interaction encoder's graph gives."""
    mask = found["codes_mask"]
    most = int(mask.sum(1).max())
    return Contexts(found["vectors"][:, :most].copy(), mask[:, :most].copy(), tokens=ContextTokens.of(ids, found))


def _parts(rows: Sequence[T], size: int) -> list[Sequence[T]]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _turns_of(contexts: Sequence[Dialogue]) -> list[list[str]]:
    """The turns of each context. InputError without any context."""
    if not (turns := checked_contexts(contexts)):
        raise InputError("no context to encode: the list of contexts is empty")
    return turns
