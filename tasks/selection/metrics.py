"""Ranking metrics: accuracy and hits@k, and those that the agent reports.

ParlAI's teachers also compute F1 and BLEU of every reply, which say little about a choice among candidates and take
longer to compute than everything else in a teacher.
"""

from __future__ import annotations

from itertools import islice

from parlai.core.message import Message
from parlai.core.metrics import AverageMetric, ExactMatchMetric, SumMetric, TeacherMetrics, normalize_answer


class RankingMetrics(TeacherMetrics):
    """`exs`, `accuracy` and `hits@k`, equal to ParlAI's; the agent's own metrics (`rank`, `mrr`, `R20@1`, ...)."""

    def evaluate_response(self, observation: Message, labels: list[str]) -> None:
        self.add("exs", SumMetric(1))
        reply = observation.get("text")
        if reply is not None:
            self.add("accuracy", ExactMatchMetric.compute(reply, labels))
        self._update_ranking_metrics(observation, labels)
        self._consume_user_metrics(observation)

    def _update_ranking_metrics(self, observation: Message, labels: list[str]) -> None:
        """hits@k of the first right candidate; later candidates, and those after the largest k, are not examined."""
        ranked = observation.get("text_candidates")
        if ranked is None:
            return
        right = {normalize_answer(label) for label in labels}
        looked_at = enumerate(islice(ranked, max(self.eval_pr)), start=1)
        rank = next((rank for rank, text in looked_at if normalize_answer(text) in right), None)
        for k in self.eval_pr:
            self.add(f"hits@{k}", AverageMetric(rank is not None and rank <= k))
