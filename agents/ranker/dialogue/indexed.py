"""`--index`: searches replies in an index of candidates instead of scoring a list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from parlai.agents.ranker.dialogue.ranking import Ranked, parlai_metrics
from parlai.agents.ranker.dialogue.sources import is_training_script
from parlai.agents.ranker.settings import given_in, option_names
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch

from polyencoder.checks import without_password
from polyencoder.errors import ConfigError
from polyencoder.evaluation import of_search
from polyencoder.index import Hit
from polyencoder.index.open import open_index
from polyencoder.index.options import SearchOptions
from polyencoder.index.searcher import Searcher
from polyencoder.ranker.ranker import Ranker
from polyencoder.scoring.context import ContextEncoding

STEPS = ("search", "rerank")


class IndexSearch:
    """The index of the options, opened for the model that made it.

    Args:
        opt: of the agent.
        ranker: the agent's model; calibrated if answers need probabilities.
    """

    def __init__(self, opt: Opt, ranker: Ranker) -> None:
        index = open_index(opt["index"], ranker)
        rerank = opt.get("rerank")
        searcher = partial(
            Searcher,
            ranker,
            index,
            **given_in(opt, SearchOptions),
            reranker=Ranker.from_pretrained(rerank, device=ranker.device) if rerank else None,
            rerank_k=opt.get("rerank_k"),
        )
        self._exam = searcher(keep_turns=True)
        self._answers = searcher(keep_turns=False) if opt["repeat_blocking_heuristic"] else self._exam
        self.calibration = self._exam.calibration

    def rank(
        self, contexts: ContextEncoding, batch: Batch, *, least: float, hits_at: Sequence[int]
    ) -> tuple[Ranked, dict[str, float]]:
        """Ranks candidates with a minimum probability, with the labels' metrics; and the milliseconds of each step.

        In an exam, which ranks a label, candidates that repeat a turn are kept, as among fixed candidates.
        """
        searcher = self._answers if batch.labels is None else self._exam
        before = dict(searcher.seconds)
        hits = searcher.find(contexts, batch.turns)
        costs = {f"{step}_ms": 1000 * (searcher.seconds[step] - before[step]) for step in STEPS if step in before}
        metrics = None
        if batch.labels is not None:
            n, k = len(searcher.index), searcher.top_k
            found = zip(batch.labels, map(distinct, hits), strict=True)
            places = [place_of(label.strip(), pairs) for label, pairs in found]
            metrics = [parlai_metrics(of_search(place, n, top_k=k, hits_at=hits_at)) for place in places]
        return ([distinct(some, least=least) for some in hits], metrics), costs


def check_index_options(opt: Opt) -> None:
    """Raises ConfigError for options that need an index, or contradict one."""
    if not opt.get("index"):
        if opt.get("rerank"):
            raise ConfigError(f"--rerank {opt['rerank']}: re-ranks results of a search, so it needs --index")
        options = option_names(SearchOptions).values()
        for name in ("rerank_k", *(option for option in options if option != "index_top_k")):
            if opt.get(name) not in (None, False):
                raise ConfigError(
                    f"--{name.replace('_', '-')} {opt[name]}: is an option of searches, so it needs --index"
                )
        return
    if is_training_script(opt):
        raise ConfigError(
            f"--index {without_password(opt['index'])}: was built by the model before this training; leave it out here"
        )
    if opt.get("index_top_k", 1) < 1:
        raise ConfigError(f"--index-top-k {opt['index_top_k']}: must be at least 1")
    if opt.get("add_label_to_fixed_cands"):
        raise ConfigError("--add-label-to-fixed-cands cannot be used with --index: add the labels to the index")


def distinct(hits: Sequence[Hit], *, least: float = 0.0) -> list[tuple[str, float]]:
    """The distinct texts of hits with a probability of at least `least`, and their best scores (re-ranked if so)."""
    pairs: dict[str, float] = {}
    for hit in hits:
        if (hit.probability or 0.0) < least:
            continue
        pairs.setdefault(hit.text.strip(), hit.score if hit.rerank_score is None else hit.rerank_score)
    return list(pairs.items())


def place_of(label: str, pairs: Sequence[tuple[str, float]]) -> int | None:
    """The rank of a label among the hits, from 1; None if it is not among them."""
    return next((rank for rank, (text, _) in enumerate(pairs, start=1) if text == label), None)
