"""`--index`: searches replies in an index of candidates instead of scoring a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from parlai.agents.ranker.dialogue.ranking import Ranked, convert_metrics
from parlai.agents.ranker.dialogue.sources import Source, build_contexts
from parlai.agents.ranker.settings import get_option_names, read_settings
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch

from polyencoder.calibration import AnswerOptions, Calibration
from polyencoder.data.pool import CandidatePool
from polyencoder.errors import ConfigError
from polyencoder.evaluation import of_search
from polyencoder.index import Hit
from polyencoder.index.open import open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker
from polyencoder.search.contexts import Contexts

STEPS = ("search", "rerank")


class IndexSource(Source):
    """The candidates of `--index`, opened for the model that made it."""

    reads_turns = True

    def __init__(self, name: str, opt: Opt) -> None:
        super().__init__(name, opt)
        self.blocks_repeats = bool(opt.get("repeat_blocking_heuristic"))
        self._searchers: tuple[Searcher, Searcher] | None = None
        """The searches of exams, which rank a label, and of answers."""

    def open(self, ranker: Callable[[], Ranker], *, autocast: Callable[[], torch.autocast], learns: bool) -> None:
        self._ranker, opt, model = ranker, self.opt, ranker()
        answers, settings = get_option_names(AnswerOptions), read_settings(opt, SearchOptions)
        if opt.get("interactive_mode") or answers.keys() & settings:
            model.calibration = super()._get_calibration()
        index, rerank = open_index(opt["index"], model), opt.get("rerank")
        self.where = index.address
        # whose results are all those of exams, too: `answer` leaves out improbable ones
        options = SearchOptions(**{name: value for name, value in settings.items() if name not in answers})
        searcher = partial(
            Searcher,
            model,
            index,
            options,
            reranker=Ranker.from_pretrained(rerank, device=model.device) if rerank else None,
            rerank_k=opt.get("rerank_k"),
        )
        exam = searcher(keep_turns=True)
        self._searchers = exam, searcher(keep_turns=False) if self.blocks_repeats else exam
        super().open(ranker, autocast=autocast, learns=learns)

    def _get_calibration(self) -> Calibration | None:
        return self._searchers[0].calibration if self._searchers else None

    def build_pool(self, batch: Batch) -> CandidatePool:
        raise ConfigError("--index was made by the model before this training: leave it out in training")

    def answer(self, batch: Batch, *, top_k: int) -> Ranked:
        """Ranks what searches find: `--index-top-k` candidates, with a minimum probability, if there is one."""
        if self._searchers is None:
            raise ConfigError("--index was made by the model before it was loaded anew: make the agent anew, too")
        searcher = self._searchers[batch.labels is None]
        with self._autocast():
            contexts = Contexts.from_encoding(self._ranker().model.encode_context(build_contexts(batch)))
        before = dict(searcher.seconds)
        all_hits = searcher.find(contexts, batch.turns)
        costs = {f"{step}_ms": 1000 * (searcher.seconds[step] - before[step]) for step in STEPS if step in before}
        metrics = None
        if batch.labels is not None:
            n, k = len(searcher.index), searcher.top_k
            labelled = zip(batch.labels, map(merge_equal_texts, all_hits), strict=True)
            ranks = [find_rank(label.strip(), pairs) for label, pairs in labelled]
            metrics = [convert_metrics(of_search(rank, n, top_k=k, hits_at=self.hits_at)) for rank in ranks]
        threshold = 0.0 if self.confidence is None else self.confidence.threshold
        return Ranked([merge_equal_texts(hits, threshold=threshold) for hits in all_hits], metrics, costs)

    def clear(self) -> None:
        """Closes the index, which another model has made."""
        self._searchers = None


def merge_equal_texts(hits: Sequence[Hit], *, threshold: float = 0.0) -> list[tuple[str, float]]:
    """The distinct texts of hits with a probability from `threshold` up, and their best scores (re-ranked if so)."""
    pairs: dict[str, float] = {}
    for hit in hits:
        if (hit.probability or 0.0) < threshold:
            continue
        pairs.setdefault(hit.text.strip(), hit.score if hit.rerank_score is None else hit.rerank_score)
    return list(pairs.items())


def find_rank(label: str, pairs: Sequence[tuple[str, float]]) -> int | None:
    """The rank of a label among the hits, from 1, the last of those with its score; None if it is not among them."""
    rank = next((rank for rank, (text, _) in enumerate(pairs, start=1) if text == label), None)
    while rank is not None and rank < len(pairs) and pairs[rank][1] == pairs[rank - 1][1]:
        rank += 1
    return rank
