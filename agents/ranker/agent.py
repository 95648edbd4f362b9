"""`RankerAgent`, the dialogue half of the agents: observing, batching, training steps, answering."""

from __future__ import annotations

from typing import Any

import parlai.utils.logging as logging
import torch
from parlai.agents.ranker.dialogue.choice import build_source, check_index_options, check_sources
from parlai.agents.ranker.dialogue.examples import Examples, choose_label
from parlai.agents.ranker.dialogue.history import RankerHistory
from parlai.agents.ranker.dialogue.ranking import TEACHER_HITS, Ranked, compute_answer_metrics
from parlai.agents.ranker.dialogue.sources import Source, build_contexts
from parlai.agents.ranker.model.agent import RankerModelAgent
from parlai.agents.ranker.model.loop import is_display_script, is_trained
from parlai.agents.ranker.settings import format_flag
from parlai.core.message import Message
from parlai.core.metrics import AverageMetric
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch, Output
from torch import Tensor

from polyencoder.data import collator
from polyencoder.errors import InputError
from polyencoder.text.context import normalize_text
from polyencoder.text.tokens import TokenBatch


class RankerAgent(RankerModelAgent):
    """Base of the agents: trains on the candidates of one source, and answers with those of another."""

    sources: dict[str, Source]
    """The sources of training and of answers (`candidates`, `eval_candidates`), by name."""

    def __init__(self, opt: Opt, shared: dict[str, Any] | None = None) -> None:
        if shared:
            self.sources = shared["sources"]
        super().__init__(opt, shared)
        surrounding = 2 if self.dict.text.config.surround else 0
        self._examples = Examples(opt, self.global_metrics, surrounding=surrounding)
        if not (shared or opt.get("interactive_mode") or is_display_script(opt)):  # which report nothing
            self._warn_of_short_lists()

    def settle_candidates(self, opt: Opt) -> Source:
        check_index_options(opt)
        check_sources(opt, in_loop=self._run.is_in_loop)
        answers = opt["interactive_candidates" if opt.get("interactive_mode") else "eval_candidates"]
        self.sources = {name: build_source(name, opt) for name in {opt["candidates"], answers}}
        return self.sources[answers]

    @property
    def source(self) -> Source:
        """The source of answers."""
        return self.sources[self.eval_candidates]

    def set_fixed_candidates(self, shared: dict[str, Any] | None) -> None:
        """Prepares the answers, once ParlAI has loaded the model."""
        # read by ParlAI's share()
        self.fixed_candidates = self.fixed_candidate_vecs = self.fixed_candidate_encs = None
        self.num_fixed_candidates = 0
        if not shared:
            learns = self._should_initialize_optimizer()
            self.source.open(self.build_ranker, autocast=self.autocast, learns=learns)

    def get_task_candidates_path(self) -> str:
        return ""  # the source has collected them

    def load(self, path: str) -> dict[str, Any]:
        states = super().load(path)
        self.source.clear()
        return states

    def share(self) -> dict[str, Any]:
        return {**super().share(), "sources": self.sources}

    def reads_turns(self) -> bool:
        """Whether batches need contexts as text, for a teacher, a reranker or searches."""
        return self.source.reads_turns or (self._training.distillation.has_teacher and is_trained(self.opt))

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
                obs.force_set("turns", history.list_turns())
        label = choose_label(obs, self.random, among=self._choose_source(obs).among)
        if label is not None:
            obs.force_set("label_choice", label)
        if self.source.blocks_repeats and "labels" not in obs:
            obs.force_set("spoken", history.collect_lines())
        return obs

    def self_observe(self, self_message: Message) -> None:
        """Adds the reply to the history, if there is one: a skipped example has none."""
        super().self_observe(Message({"text": None, **self_message}))

    def is_valid(self, obs: Message) -> bool:
        if obs.is_padding() or obs.get("text_vec") is None:
            return False
        return self._examples.is_usable(obs, self._choose_source(obs))

    def _choose_source(self, obs: Message) -> Source:
        return self.sources[self.candidates if "labels" in obs else self.eval_candidates]

    def batchify(self, obs_batch: list[Message], sort: bool = False) -> Batch:
        """Makes a batch of the valid examples: contexts as tensors, labels and candidates as text."""
        valid = [(i, obs) for i, obs in enumerate(obs_batch) if self.is_valid(obs)]
        if not valid:
            return Batch(batchsize=0, is_training=any("labels" in obs for obs in obs_batch))
        positions, examples = zip(*valid, strict=True)
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
            label_vec=text.batch_candidates(labels).ids if has_labels else None,
            labels=labels if has_labels else None,
            right=[self._choose_source(obs).get_right(obs) for obs in examples] if has_labels else None,
            valid_indices=torch.tensor(positions),
            turns=[obs["turns"] for obs in examples] if self.reads_turns() else None,
            candidates=None if None in candidates else candidates,
            spoken=[obs.get("spoken") or set() for obs in examples],
            observations=list(examples) if self.is_debug else None,
        )

    # ---- training

    def train_step(self, batch: Batch) -> Output | None:
        """One step of the library's trainer."""
        is_usable = batch.text_vec is not None
        if not self.begin_batch(is_empty=not is_usable):
            return None
        assert self.trainer is not None
        self.source.clear()
        examples = None
        if is_usable:
            pool = self.sources[self.candidates].build_pool(batch)
            examples = collator.Batch(build_contexts(batch), pool.to(batch.text_vec.device), turns=batch.turns)
        outcome = self.trainer.step(examples)
        if outcome is None or not len(outcome):
            return None
        if not self.opt.get("train_predict") or len(outcome) < batch.batchsize:  # some examples have no negatives
            return Output()
        best = outcome.scores.argmax(1).tolist()
        return Output([outcome.pool.list_candidates(row)[column] for row, column in enumerate(best)])

    # ---- answering

    def eval_step(self, batch: Batch) -> Output | None:
        if batch.text_vec is None:
            return None
        self.model.eval()
        ranked = self.rank(batch)
        return None if ranked is None else self._answer(ranked, batch)

    def rank(self, batch: Batch) -> Ranked | None:
        """Ranks the candidates of each example, with the label's metrics; None if there are no negatives."""
        spare = max(map(len, batch.spoken)) if self.source.blocks_repeats else 0
        ranked = self.source.answer(batch, top_k=self._get_list_length() + spare)
        self._examples.check_exam(batch.labels, self.source.name, is_ranked=ranked is not None)
        for name, value in () if ranked is None else ranked.costs.items():
            self.global_metrics.add(name, AverageMetric(value, batch.batchsize))
        return ranked

    def score_candidates(self, batch: Batch, cand_vecs: Tensor, cand_encs: Tensor | None = None) -> Tensor:
        """Scores candidates for ParlAI: [batch, n], from their ids [n, length] or [batch, n, length]."""
        ids = cand_vecs.flatten(0, -2)
        index = None
        if cand_vecs.dim() == 3:
            index = torch.arange(len(ids), device=ids.device).view(cand_vecs.shape[:2])
        return self.model(build_contexts(batch), TokenBatch(ids, ids != self.NULL_IDX), index)

    def _answer(self, ranked: Ranked, batch: Batch) -> Output:
        """Replies to each example with its best candidate that does not repeat an earlier line.

        Repeats are blocked only among fixed candidates, and never all of them. In an exam, where the label is known,
        the reply's ranking includes them, as teachers compute hits@k from it. If no candidate is likely enough
        (`--min-probability`), the reply is the text of `--no-answer`.
        """
        results, metrics, _ = ranked
        if self.source.confidence is not None and metrics is not None:
            answer_metrics = compute_answer_metrics(results, batch.labels)
            metrics = [of_label | of_answer for of_label, of_answer in zip(metrics, answer_metrics, strict=True)]
        sayable = results
        if self.source.blocks_repeats:
            sayable = [
                [pair for pair in pairs if normalize_text(pair[0]) not in lines] or pairs
                for pairs, lines in zip(results, batch.spoken, strict=True)
            ]
        choices = 1 if self.opt["inference"] == "max" else self.opt["topk"]
        choosable = [[text for text, _ in pairs[:choices]] for pairs in sayable]
        listed = [pairs[: self._get_list_length()] for pairs in (sayable if metrics is None else results)]
        return Output(
            [self.random.choice(texts) if texts else self.opt["no_answer"] for texts in choosable],
            [[text for text, _ in pairs] for pairs in listed],
            metrics=metrics,
            sorted_scores=[[s for _, s in pairs] for pairs in listed] if self.opt["return_cand_scores"] else None,
        )

    def _warn_of_short_lists(self) -> None:
        """Warns of hits@k beyond the candidates that an answer lists, since ParlAI's teachers count in that list."""
        listed, option = self._get_list_length(), "rank_top_k" if self.rank_top_k > 0 else "cap_num_predictions"
        if beyond := [name for name in TEACHER_HITS if int(name.partition("@")[2]) > listed]:
            logging.warning(
                f"{format_flag(option)} {listed}: {', '.join(beyond)} are those of the {listed} listed candidates; "
                "rank, mrr and RN@k count all"
            )

    def _get_list_length(self) -> int:
        return int(self.rank_top_k if self.rank_top_k > 0 else self.opt["cap_num_predictions"])
