"""`--index`: replies are searched for in an index of candidates, however many, instead of scoring a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parlai.agents.ranker.agent import RankerAgent
from parlai.agents.ranker.args import add_index_args
from parlai.agents.ranker.learning.step import contexts_of
from parlai.agents.ranker.ranking import parlai_metrics
from parlai.core.metrics import AverageMetric
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from parlai.core.torch_agent import Batch, Output

from polyencoder.calibration import Calibration
from polyencoder.errors import ConfigError
from polyencoder.evaluation import of_search
from polyencoder.index import Hit
from polyencoder.index.open import open_index
from polyencoder.index.searcher import Searcher
from polyencoder.ranker import Ranker

SOURCE = "index"
"""What `eval_candidates` is when `--index` stands for the fixed candidates."""


class IndexedAgent(RankerAgent):
    """An agent that scores everything, or searches an index if it is given one."""

    @classmethod
    def add_cmdline_args(cls, parser: ParlaiParser, partial_opt: Opt | None = None) -> ParlaiParser:
        super().add_cmdline_args(parser, partial_opt=partial_opt)
        add_index_args(parser)
        return parser

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        check_index_options(opt)
        self._searcher: Searcher | None = shared["searcher"] if shared else None
        super().__init__(opt, shared)

    def share(self) -> dict[str, Any]:
        return {**super().share(), "searcher": self._searcher}

    # ---- the index in the place of fixed candidates

    def _set_candidate_variables(self, opt: Opt) -> None:
        super()._set_candidate_variables(opt)
        if not opt.get("index"):
            return
        if (opt.get("override") or {}).get("eval_candidates", "fixed") != "fixed":
            raise ConfigError(f"--index stands for fixed candidates, not --eval-candidates {self.eval_candidates}")
        self.eval_candidates = SOURCE

    def set_interactive_mode(self, mode: bool, shared: Any = False) -> None:
        super().set_interactive_mode(mode, shared)
        if self.opt.get("index") and self.eval_candidates == "fixed":
            self.eval_candidates = SOURCE

    def get_task_candidates_path(self) -> str:
        """None is needed where there is an index: ParlAI would make a file of the task's."""
        return "" if self.opt.get("index") else super().get_task_candidates_path()

    def set_fixed_candidates(self, shared: dict[str, Any] | None) -> None:
        super().set_fixed_candidates(shared)
        if not shared and self.eval_candidates == SOURCE:
            self._searcher = self._opened()

    def forget_vectors(self) -> None:
        super().forget_vectors()
        self._searcher = None

    def _opened(self) -> Searcher:
        ranker = self._library_ranker()
        if self.opt.get("min_probability") is not None:
            ranker.calibration = super()._calibration()
        index = open_index(self.opt["index"], ranker)
        index.tune(effort=self.opt.get("index_effort"), list_length=self.opt.get("index_list_length"))
        rerank = self.opt.get("rerank")
        return Searcher(
            ranker,
            index,
            top_k=min(self.opt["index_top_k"], len(index)) or None,
            reranker=Ranker.from_pretrained(rerank, device=ranker.device) if rerank else None,
            rerank_k=self.opt["rerank_k"],
            keep_turns=not self.opt["repeat_blocking_heuristic"],
        )

    def _calibration(self) -> Calibration | None:
        return self._searcher.calibration if self._searcher else super()._calibration()

    # ---- answering

    def reads_turns(self) -> bool:
        return super().reads_turns() or bool(self.opt.get("index"))  # what was said, and what a cross-encoder reads

    def eval_step(self, batch: Batch) -> Output | None:
        if self.eval_candidates != SOURCE or batch.text_vec is None:
            return super().eval_step(batch)
        if (searcher := self._searcher) is None:
            raise ConfigError("--index was made by the model as it was before it learnt: leave it out in training")
        self.model.eval()
        with self.autocast():
            contexts = self.ranker.encode_context(contexts_of(batch))
        before, left_out = dict(searcher.seconds), searcher.left_out
        hits = searcher.find(contexts, batch.turns)
        found = [distinct(some) for some in hits]
        for step in ("search", "rerank"):
            if step in before:
                spent = 1000 * (searcher.seconds[step] - before[step])
                self.global_metrics.add(f"{step}_ms", AverageMetric(spent, len(found)))
        self.global_metrics.add("own_turns", AverageMetric(searcher.left_out - left_out, len(found)))
        metrics = None
        if batch.labels is not None:
            n, k = len(searcher.index), searcher.top_k
            rank = [place_of(label.strip(), pairs) for label, pairs in zip(batch.labels, found, strict=True)]
            metrics = [parlai_metrics(of_search(one, n, top_k=k, hits_at=self._hits_at)) for one in rank]
        if self._confidence is not None:
            least = self._confidence.least
            likely = ([hit for hit in some if (hit.probability or 0) >= least] for some in hits)
            found = [distinct(some) for some in likely]
        return self._answer(found, batch, metrics)


def check_index_options(opt: Opt) -> None:
    """Raise ConfigError for options that need an index and have none, or cannot be used with one."""
    if not opt.get("index"):
        if opt.get("rerank"):
            raise ConfigError(f"--rerank {opt['rerank']}: orders what a search finds, so it needs --index")
        for name in ("index_effort", "index_list_length"):
            if opt.get(name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} {opt[name]}: says how to search, so it needs --index")
        return
    if opt.get("index_top_k", 1) < 1:
        raise ConfigError(f"--index-top-k {opt['index_top_k']}: must be at least 1")
    if opt.get("add_label_to_fixed_cands"):
        raise ConfigError("--add-label-to-fixed-cands cannot be used with --index: add the labels to the index")


def distinct(hits: Sequence[Hit]) -> list[tuple[str, float]]:
    """Each text once, where it is best, and its score: the cross-encoder's if it has one."""
    pairs: dict[str, float] = {}
    for hit in hits:
        pairs.setdefault(hit.text.strip(), hit.score if hit.rerank_score is None else hit.rerank_score)
    return list(pairs.items())


def place_of(label: str, pairs: Sequence[tuple[str, float]]) -> int | None:
    """The rank of a label among the texts that were found, from 1; None if it is not among them."""
    return next((rank for rank, (text, _) in enumerate(pairs, start=1) if text == label), None)
