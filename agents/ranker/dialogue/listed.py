"""Sources that list the candidates of a batch: `batch`, `inline` and `batch-all-cands`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from parlai.agents.ranker.dialogue.examples import get_right_candidates
from parlai.agents.ranker.dialogue.ranking import Ranked, compute_pool_metrics, rank_pool
from parlai.agents.ranker.dialogue.sources import Source, build_contexts
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch
from torch import Tensor

from polyencoder.data.pool import CandidatePool, build_batch_pool
from polyencoder.encoding.reading import CandidateReader
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.ranker import Ranker
from polyencoder.scoring.tokens import TokenVectors
from polyencoder.text import TokenBatch

CAPACITY = 512 << 20  # bytes of cached vectors: some 200,000 candidates at 384 dimensions
IN_SELECTION = ("convai2", "dstc7", "ubuntu")  # tasks of ParlAI with a `-t selection:NAME`


class ListedSource(Source):
    """Base of the sources that list candidates. The model encodes each once, until it changes."""

    def __init__(self, name: str, opt: Opt) -> None:
        super().__init__(name, opt)
        self._reader = CandidateReader(max_bytes=CAPACITY)

    def build_pool(self, batch: Batch) -> CandidatePool:
        return build_batch_pool(self.name, labels=batch.labels, candidates=batch.candidates, relevance=batch.right)

    def answer(self, batch: Batch, *, top_k: int) -> Ranked | None:
        pool = self.build_pool(batch)
        if batch.labels is not None and not pool.has_negatives:
            return None
        scores = self._compute_scores(batch, pool)
        pool = pool.to(scores.device)
        scores = pool.mask_scores(scores)
        results = rank_pool(scores, pool, top_k=top_k if self.confidence is None else scores.size(1))
        if self.confidence is not None:
            counted = zip(results, pool.count_candidates(len(results)), strict=True)
            results = [self.confidence.select_answers(pairs, among=n)[:top_k] for pairs, n in counted]
        if pool.labels is None:
            return Ranked(results, None)
        metrics = compute_pool_metrics(scores, pool, self._list_keys(pool), has_n=self.has_n, hits_at=self.hits_at)
        return Ranked(results, metrics)

    def _list_keys(self, pool: CandidatePool) -> Sequence[Hashable]:
        return [ids.tobytes() for ids in tokenize_candidates(self._ranker().text, pool.texts, remember=True)]

    def _compute_scores(self, batch: Batch, pool: CandidatePool) -> Tensor:
        with self._autocast():
            return self._score(build_contexts(batch), pool.to(batch.text_vec.device), self._ranker())

    def _score(self, contexts: TokenBatch, pool: CandidatePool, ranker: Ranker) -> Tensor:
        model = ranker.model
        if model.reads_pairs:
            return model(contexts, ranker.text.batch_candidates(pool.texts).to(ranker.device), pool.index)
        vectors = self._encode_texts(pool.texts, ranker)
        return model.score(model.encode_context(contexts), vectors if pool.index is None else vectors[pool.index])

    def _encode_texts(self, texts: Sequence[str], ranker: Ranker) -> Tensor:
        """Vectors [len(texts), dim] of distinct texts, cached until the model changes."""
        ids = tokenize_candidates(ranker.text, texts, remember=True)
        return torch.stack([candidate.vector for candidate in self._read_candidates(ranker, ids)])

    def _read_candidates(self, ranker: Ranker, ids: Sequence[Sequence[int]]) -> list[TokenVectors]:
        """The vectors of candidates with these tokens, cached, on the model's device."""
        read = self._reader(ranker.encoder, ids)
        return [TokenVectors(*(torch.from_numpy(array).to(ranker.device) for array in arrays)) for arrays in read]

    def clear(self) -> None:
        self._reader = CandidateReader(max_bytes=CAPACITY)


class InBatchSource(ListedSource):
    """The labels of the batch (`batch`)."""

    def find_problem(self, obs: Message) -> str | None:
        if obs.get("label_choice") is None:
            return f"has no label, which {self.get_flag(obs)} batch takes as a candidate; use inline or fixed"
        return None

    def get_right(self, obs: Message) -> dict[str, float] | None:
        return get_right_candidates(obs)


class OwnSource(ListedSource):
    """Each example's own candidates (`inline`), or those of all examples of the batch (`batch-all-cands`)."""

    def __init__(self, name: str, opt: Opt) -> None:
        super().__init__(name, opt)
        self.has_n = name == "inline"

    def get_required_candidates(self, obs: Message) -> Sequence[str]:
        return obs.get("label_candidates") or ()

    def find_problem(self, obs: Message) -> str | None:
        candidates, label, flag = self.get_required_candidates(obs), obs.get("label_choice"), self.get_flag(obs)
        if not candidates:
            otherwise = f"{flag} batch with batches of 2 or more{_name_drawing_task(obs)}"
            if self.opt.get("interactive_mode"):  # as in self_chat, which has no such flag
                is_there = "local_human_candidates_file" in self.opt
                otherwise = "give them in --local-human-candidates-file FILE" if is_there else ""
            return (
                f"has no candidates of its own, which {flag} {self.name} needs; use {flag} fixed with "
                f"--fixed-candidates-path FILE{otherwise and f', or {otherwise}'}"
            )
        if label is not None and label not in candidates:
            return f"has a label that is not among its {len(candidates)} candidates"
        if self.has_n and label is not None and len(set(candidates)) == 1:
            return f"has one candidate, its label: with {flag} inline there are no negatives"
        return None

    def get_right(self, obs: Message) -> dict[str, float] | None:
        return get_right_candidates(obs, among=self.get_required_candidates(obs))


def _name_drawing_task(obs: Message) -> str:
    """Names our task that samples the candidates which this one (mostly a ParlAI task) lacks."""
    task = str(obs.get("id", "")).partition(":")[0]
    if task == "selection":
        return ""
    name = f"selection:{task}" if task in IN_SELECTION else "selection:jsonl, for a file of pairs"
    return f", or -t {name}, which draws them"
