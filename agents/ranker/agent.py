"""`RankerAgent`, the dialogue half of the agents: observing, batching, training steps, answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from parlai.agents.ranker.dialogue.examples import Examples, label_of, right_of
from parlai.agents.ranker.dialogue.fixed import FixedCandidates, index_place, read_candidates
from parlai.agents.ranker.dialogue.history import RankerHistory
from parlai.agents.ranker.dialogue.indexed import IndexSearch, check_index_options
from parlai.agents.ranker.dialogue.listed import ListedCandidates
from parlai.agents.ranker.dialogue.ranking import (
    Confidence,
    Ranked,
    Scored,
    answer_metrics,
    best_of_pool,
    confidence,
    pool_metrics,
)
from parlai.agents.ranker.dialogue.sources import INDEX, check_sources
from parlai.agents.ranker.model.agent import RankerModelAgent
from parlai.agents.ranker.model.loop import trains
from parlai.core.message import Message
from parlai.core.metrics import AverageMetric, Metric
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from torch import Tensor

from polyencoder.calibration import DEPTH, Calibration, read_calibration
from polyencoder.data import collator
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation.names import parse_hits_at
from polyencoder.ranker.ranker import Ranker
from polyencoder.text import TokenBatch, same


class RankerAgent(RankerModelAgent):
    """Base of the agents: scores listed candidates, or searches an index of them.

    Fixed candidates are encoded once, until the model changes.
    """

    fixed: FixedCandidates | None = None
    _listed: ListedCandidates | None = None
    """None while the agent is being made."""

    @classmethod
    def history_class(cls) -> type[RankerHistory]:
        return RankerHistory

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        self._hits_at = parse_hits_at(opt.get("hits_at", "1,5,10"))
        self._search: IndexSearch | None = shared["search"] if shared else None
        super().__init__(opt, shared)
        surrounding = 2 if self.dict.text.config.surround else 0
        self._examples = Examples(opt, self.global_metrics, fixed=self.fixed, surrounding=surrounding)
        self._confidence: Confidence | None
        if shared:
            self._confidence = shared["confidence"]
        else:
            learns = self._should_initialize_optimizer()
            self._confidence = confidence(opt, self._calibration, of=self._library_ranker, learns=learns)
            if opt.get("interactive_mode") and self._listed is not None:
                self._listed.prepare()

    def settle_candidates(self, opt: Opt) -> None:
        check_index_options(opt)
        check_sources(opt, in_loop=self._run.is_in_loop)

    def _calibration(self) -> Calibration | None:
        """The calibration of the model that scores answers."""
        if self._search is not None:
            return self._search.calibration
        model_file = self.opt.get("model_file")
        return read_calibration(model_file, self._library_ranker()) if model_file else None

    def forget_vectors(self) -> None:
        """Drops cached vectors after the model has changed."""
        self._search = None
        if self._listed is not None:
            self._listed.clear()

    def _library_ranker(self) -> Ranker:
        """The current model as the library's `Ranker`."""
        ranker = Ranker(self.ranker, self.dict.text, device=next(self.ranker.parameters()).device)
        ranker.source = Path(self.opt["model_file"]) if self.opt.get("model_file") else None
        return ranker

    def reads_turns(self) -> bool:
        """Whether batches need contexts as text, for a teacher, a reranker or searches."""
        return bool(self.opt.get("index")) or (self._training.distillation.has_teacher and trains(self.opt))

    # ---- observing

    def vectorize(self, obs: Message, history: RankerHistory, **_: Any) -> Message:
        """Adds the context's token ids and the chosen label. Candidates stay text until the batch is built."""
        if "text" in obs:
            obs.force_set("full_text", history.get_history_str())
            try:
                obs.force_set("text_vec", history.get_history_vec())
            except InputError:  # an invalid text: `Examples` reports it
                obs.force_set("text_vec", [])
            if self.reads_turns():
                obs.force_set("turns", history.turns())
        label = label_of(obs, self.random, among=self.fixed.place if self.fixed else None)
        if label is not None:
            obs.force_set("label_choice", label)
        if self._blocks_repeats() and "labels" not in obs:
            obs.force_set("said", history.lines())
        return obs

    def is_valid(self, obs: Message) -> bool:
        if obs.is_padding() or obs.get("text_vec") is None:
            return False
        return self._examples.is_usable(obs, self._source(obs))

    def _source(self, obs: Message) -> str:
        """The source of an example's candidates, in training or evaluation."""
        return str(self.candidates if "labels" in obs else self.eval_candidates)

    def batchify(self, obs_batch: list[Message], sort: bool = False) -> Batch:
        """Makes a batch of the valid examples: contexts as tensors, labels and candidates as text."""
        valid = [(i, obs) for i, obs in enumerate(obs_batch) if self.is_valid(obs)]
        if not valid:
            return Batch(batchsize=0, is_training=any("labels" in obs for obs in obs_batch))
        places, examples = zip(*valid, strict=True)
        text = self.dict.text
        contexts = text.pad([obs["text_vec"] for obs in examples])
        labels = [obs.get("label_choice") for obs in examples]
        has_labels = None not in labels
        candidates = [obs.get("label_candidates") for obs in examples]
        return Batch(
            batchsize=len(examples),
            is_training=any("labels" in obs for obs in obs_batch),
            text_vec=contexts.ids,
            text_mask=contexts.mask,
            label_vec=text.candidates(labels).ids if has_labels else None,
            labels=labels if has_labels else None,
            right=[right_of(obs, self._source(obs)) for obs in examples] if has_labels else None,
            valid_indices=torch.tensor(places),
            turns=[obs["turns"] for obs in examples] if self.reads_turns() else None,
            candidates=None if None in candidates else candidates,
            said=[obs.get("said") or set() for obs in examples],
            observations=list(examples) if self.is_debug else None,
        )

    # ---- training

    def train_step(self, batch: Batch) -> Output | None:
        """One step of the library's trainer."""
        is_usable = batch.text_vec is not None
        if not self.begin_batch(is_empty=not is_usable):
            return None
        assert self.trainer is not None
        self.forget_vectors()
        examples = None
        if is_usable:
            pool = self._examples.pool(
                self.candidates, labels=batch.labels, candidates=batch.candidates, right=batch.right
            )
            examples = collator.Batch(contexts_of(batch), pool.to(batch.text_vec.device), turns=batch.turns)
        outcome = self.trainer.step(examples)
        if outcome is None or not len(outcome):
            return None
        if not self.opt.get("train_predict") or len(outcome) < batch.batchsize:  # some examples have no negatives
            return Output()
        best = outcome.scores.argmax(1).tolist()
        return Output([outcome.pool.candidates(row)[column] for row, column in enumerate(best)])

    # ---- answering

    def eval_step(self, batch: Batch) -> Output | None:
        if batch.text_vec is None:
            return None
        self.model.eval()
        ranked = self.rank(batch)
        return None if ranked is None else self._answer(*ranked, batch)

    def rank(self, batch: Batch) -> Ranked | None:
        """Ranks the candidates of each example, with the label's metrics; None if there are no negatives."""
        if self.eval_candidates == INDEX:
            return self._searched(batch)
        pool = self._examples.exam(
            self.eval_candidates, labels=batch.labels, candidates=batch.candidates, right=batch.right
        )
        if pool is None:
            return None
        pool = pool.to(batch.text_vec.device)
        assert self._listed is not None
        with self.autocast():
            scores = pool.masked(self._listed.scores(contexts_of(batch), pool))
        metrics = pool_metrics(scores, pool, self.eval_candidates, hits_at=self._hits_at)
        spare = max(map(len, batch.said)) if self._blocks_repeats() else 0
        most = max(self._wanted() + spare, DEPTH if self._confidence is not None else 0)
        found = best_of_pool(scores, pool, most=most)
        if self._confidence is not None:
            counted = zip(found, pool.counts(len(found)), strict=True)
            found = [self._confidence.answers(pairs, among=n) for pairs, n in counted]
        return found, metrics

    def _searched(self, batch: Batch) -> Ranked:
        if self._search is None:
            raise ConfigError("--index was made by the model before this training: leave it out in training")
        with self.autocast():
            contexts = self.ranker.encode_context(contexts_of(batch))
        least = 0.0 if self._confidence is None else self._confidence.least
        ranked, costs = self._search.rank(contexts, batch, least=least, hits_at=self._hits_at)
        for name, value in costs.items():
            self.global_metrics.add(name, AverageMetric(value, batch.batchsize))
        return ranked

    def score_candidates(self, batch: Batch, cand_vecs: Tensor, cand_encs: Tensor | None = None) -> Tensor:
        """Scores candidates for ParlAI: [batch, n], from their ids [n, length] or [batch, n, length]."""
        ids = cand_vecs.flatten(0, -2)
        index = None
        if cand_vecs.dim() == 3:
            index = torch.arange(len(ids), device=ids.device).view(cand_vecs.shape[:2])
        scores: Tensor = self.model(contexts_of(batch), TokenBatch(ids, ids != self.NULL_IDX), index)
        return scores

    def _answer(self, found: list[Scored], metrics: list[dict[str, Metric]] | None, batch: Batch) -> Output:
        """Replies to each example with its best candidate that does not repeat an earlier line.

        Repeats are blocked only among fixed candidates, and never all of them. In an exam, where the label is known,
        the reply's ranking includes them, as teachers compute hits@k from it. If no candidate is likely enough
        (`--min-probability`), the reply is the text of `--no-answer`.
        """
        if self._confidence is not None and metrics is not None:
            metrics = [{**one, **more} for one, more in zip(metrics, answer_metrics(found, batch.labels), strict=True)]
        sayable = found
        if self._blocks_repeats():
            sayable = [
                [pair for pair in pairs if same(pair[0]) not in lines] or pairs
                for pairs, lines in zip(found, batch.said, strict=True)
            ]
        choices = 1 if self.opt["inference"] == "max" else self.opt["topk"]
        choosable = [[text for text, _ in pairs[:choices]] for pairs in sayable]
        listed = [pairs[: self._wanted()] for pairs in (sayable if metrics is None else found)]
        return Output(
            [self.random.choice(texts) if texts else self.opt["no_answer"] for texts in choosable],
            [[text for text, _ in pairs] for pairs in listed],
            metrics=metrics,
            sorted_scores=[[s for _, s in pairs] for pairs in listed] if self.opt["return_cand_scores"] else None,
        )

    def _wanted(self) -> int:
        """The number of candidates that an answer lists."""
        return int(self.rank_top_k if self.rank_top_k > 0 else self.opt["cap_num_predictions"])

    def _blocks_repeats(self) -> bool:
        return bool(self.opt["repeat_blocking_heuristic"]) and self.eval_candidates in ("fixed", "index")

    # ---- fixed candidates, and those of an index

    def set_fixed_candidates(self, shared: dict[str, Any] | None) -> None:
        """Reads the fixed candidates, if a source is `fixed`, or opens the index. They are encoded at first use."""
        self.fixed, self._listed = (shared["fixed"], shared["listed"]) if shared else (None, None)
        # read by ParlAI's share()
        self.fixed_candidates = self.fixed_candidate_vecs = self.fixed_candidate_encs = None
        self.num_fixed_candidates = 0
        if not shared and self.eval_candidates == INDEX:
            ranker = self._library_ranker()
            if self.opt.get("min_probability") is not None:
                ranker.calibration = self._calibration()
            self._search = IndexSearch(self.opt, ranker)
        if shared:
            return
        if "fixed" in (self.candidates, self.eval_candidates):
            path = self.fixed_candidates_path or self.get_task_candidates_path()
            self.fixed = FixedCandidates(read_candidates(path), place=index_place(self.opt, path))
            self.fixed_candidates, self.num_fixed_candidates = self.fixed.texts, len(self.fixed.texts)
        self._listed = ListedCandidates(
            self.opt,
            self._library_ranker,
            fixed=self.fixed if self.eval_candidates == "fixed" else None,
            on_disk=self.opt["encode_candidate_vecs"] and not self._should_initialize_optimizer(),
        )

    def get_task_candidates_path(self) -> str:
        if not self.opt.get("model_file"):
            raise InputError("fixed candidates need a file: give --fixed-candidates-path")
        # the negative value left by training would make ParlAI log a line for each example
        own, self.opt["log_every_n_secs"] = self.opt.get("log_every_n_secs"), 10.0
        try:
            return str(super().get_task_candidates_path())
        finally:
            self.opt["log_every_n_secs"] = own

    def load(self, path: str) -> dict[str, Any]:
        states = super().load(path)
        self.forget_vectors()
        return states

    def share(self) -> dict[str, Any]:
        own = {"fixed": self.fixed, "listed": self._listed, "search": self._search, "confidence": self._confidence}
        return {**super().share(), **own}


def contexts_of(batch: Batch) -> TokenBatch:
    """The contexts of a batch as the model's input."""
    return TokenBatch(batch.text_vec, batch.text_mask)
