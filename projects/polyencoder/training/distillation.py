"""Knowledge distillation: the labels' cross-entropy plus a loss against the scores of a teacher.

A cross-encoder's scores are expensive and therefore cached (`ScoreCache`): further epochs, seeds and students only look
them up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from polyencoder.data.collator import Batch
from polyencoder.data.pool import CandidatePool
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.encoding.protocol import Context, TextRanker
from polyencoder.encoding.scorer import tokenize_contexts
from polyencoder.encoding.tokens import tokenize_candidates
from polyencoder.errors import InputError
from polyencoder.settings.training import DistillationConfig
from polyencoder.storage.digests import compute_fingerprint
from polyencoder.text import TextEncoder
from polyencoder.training.losses import distillation_kl, margin_mse
from polyencoder.training.objective import CrossEntropy, Loss, Sums
from polyencoder.training.score_cache import ScoreCache

_UNKNOWN = 0.5  # share of unknown tokens from which a teacher's scores are noise


class Teacher:
    """Scores pairs of texts with a ranker, each pair once, and caches the scores; `num_scored` counts the pairs.

    Args:
        cache: its keys include a fingerprint of the ranker, so that runs can share it.
        bf16: compute in bfloat16; cached separately.
        student: reads the student's texts; None if nothing is known of it.

    Raises:
        InputError: at the first scores, if it knows under half of the candidates' tokens, and fewer than the student.
    """

    def __init__(
        self,
        ranker: TextRanker,
        cache: ScoreCache,
        *,
        bf16: bool = False,
        name: str = "the teacher",
        student: TextEncoder | None = None,
    ) -> None:
        self.ranker, self.name, self._student = ranker, name, student
        self.num_scored = 0
        self._cache = cache
        self._bf16 = bf16
        self.digest = f"{compute_model_fingerprint(ranker.model, ranker.text)} bf16={bf16}"
        self._step: tuple[Sequence[Context], Sequence[str], Tensor] | None = None

    def score(
        self, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor, *, recur: bool = True
    ) -> Tensor:
        """Scores [batch, n] of each context's candidates, in float32 on the CPU.

        `index` [batch, n]: each context's candidates as positions in `candidates`; negative is padding, which scores
        -inf. `recur`: the pairs may come again. Other pairs are remembered only for calls with the same two lists,
        unless the ranker reads pairs: a ranker with vectors encodes each text once, and would fill the cache with the
        square of the batch size for nothing.
        """
        index = index.cpu()
        if self.ranker.model.has_vectors and not recur:
            return self._score_step(contexts, candidates, index)
        rows, columns = (index >= 0).nonzero(as_tuple=True)
        context_keys = [
            _compute_key(self.digest, *([turns] if isinstance(turns, str) else turns)) for turns in contexts
        ]
        candidate_keys = [_compute_key(text) for text in candidates]
        pairs = zip(rows.tolist(), index[rows, columns].tolist(), strict=True)
        keys = [context_keys[row] + candidate_keys[candidate] for row, candidate in pairs]
        cached = self._cache.get(keys)
        missing: dict[bytes, int] = {}  # key -> first occurrence
        for position, key in enumerate(keys):
            if key not in cached:
                missing.setdefault(key, position)
        if missing:
            positions = torch.tensor(list(missing.values()))
            new = self._ask_positions(contexts, candidates, index, rows[positions], columns[positions])
            fresh = dict(zip(missing, new.tolist(), strict=True))
            self._cache.put(fresh)
            cached |= fresh
        scores = torch.full(index.shape, -torch.inf)
        scores[rows, columns] = torch.tensor([cached[key] for key in keys])
        return scores

    def _score_step(self, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor) -> Tensor:
        """Scores pairs of one step once, which several losses may ask for, as with `matryoshka`."""
        if self._step is None or self._step[0] is not contexts or self._step[1] is not candidates:
            self._step = contexts, candidates, torch.full((len(contexts), len(candidates)), torch.nan)
        scores, positions = self._step[2], index.clamp(min=0)
        rows, columns = (scores.gather(1, positions).isnan() & (index >= 0)).nonzero(as_tuple=True)
        if len(rows):
            scores[rows, index[rows, columns]] = self._ask_positions(contexts, candidates, index, rows, columns)
        return scores.gather(1, positions).masked_fill(index < 0, -torch.inf)

    def _ask(self, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor) -> Tensor:
        if not self.num_scored:
            self._check_knows(candidates)
        self.num_scored += int((index >= 0).sum())
        with torch.autocast(self.ranker.device.type, torch.bfloat16, enabled=self._bf16):
            text, encoder = self.ranker.text, self.ranker.encoder
            ids = tokenize_contexts(text, contexts), tokenize_candidates(text, candidates, remember=True)
            return torch.from_numpy(encoder.score_ids(*ids, index.cpu().numpy()))

    def _check_knows(self, candidates: Sequence[str]) -> None:
        share = self.ranker.text.compute_unknown_share(candidates)
        if share > _UNKNOWN and (self._student is None or share > self._student.compute_unknown_share(candidates)):
            raise InputError(
                f"{self.name} cannot teach here: its vocabulary lacks {share:.0%} of the tokens of the first "
                f"candidates, such as {candidates[0]!r:.60}",
                argument="teacher",
            )

    def _ask_positions(
        self, contexts: Sequence[Context], candidates: Sequence[str], index: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:
        """Scores these positions of `index`."""
        used, row_of = rows.unique(return_inverse=True)
        texts, text_of = index[rows, columns].unique(return_inverse=True)
        compact = torch.full((len(used), index.size(1)), -1)
        compact[row_of, columns] = text_of
        scores = self._ask([contexts[i] for i in used.tolist()], [candidates[i] for i in texts.tolist()], compact)
        return scores[row_of, columns]


class Distillation:
    """(1 - weight) x loss of the labels + weight x loss against the teacher."""

    def __init__(
        self, teacher: Teacher, config: DistillationConfig | None = None, *, labels: Loss | None = None
    ) -> None:
        self.teacher, self.config, self.labels = teacher, config or DistillationConfig(), labels or CrossEntropy()

    def __call__(self, scores: Tensor, pool: CandidatePool, batch: Batch) -> tuple[Tensor, Sums]:
        config, (hard, sums) = self.config, self.labels(scores, pool, batch)
        assert pool.labels is not None
        assert batch.turns is not None, "distillation needs the contexts as text: Collator(with_turns=True)"
        columns = select_shortlist(scores, pool.labels, config.candidates or scores.size(1))  # each row's label first
        index, before = map_to_rows(columns, pool), self.teacher.num_scored
        recur = pool.index is not None  # a shuffled batch has other texts in each epoch
        teacher = self.teacher.score(batch.turns, pool.texts, index, recur=recur).to(scores.device)
        student = scores.gather(1, columns.clamp(min=0))
        if config.kind == "kl":
            soft = distillation_kl(student, teacher, temperature=config.temperature)
        else:
            soft = margin_mse(student, teacher, torch.zeros_like(pool.labels))
        metrics = {
            "teacher_pairs": (float(self.teacher.num_scored - before), 0),
            "distillation_loss": (float(soft.detach().sum()), len(soft)),
        }
        return (1 - config.weight) * hard + config.weight * soft, {**sums, **metrics}

    def has_choice(self, labels: Sequence[float]) -> bool:
        return len(labels) > 1 or self.labels.has_choice(labels)


def map_to_rows(columns: Tensor, pool: CandidatePool) -> Tensor:
    """Maps columns of a pool's scores to rows of the pool; -1 for no candidate."""
    if pool.index is None:
        return columns
    return pool.index.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, -1)


def select_shortlist(scores: Tensor, labels: Tensor, n: int) -> Tensor:
    """Columns of `scores` [batch, n], at most `n`: each example's label, then its best others; -1 is padding."""
    right = labels.unsqueeze(-1)
    others = scores.detach().scatter(-1, right, -torch.inf)
    best, columns = others.topk(min(n, scores.size(-1)) - 1)
    return torch.cat([right, columns.masked_fill(best == -torch.inf, -1)], dim=-1)


def _compute_key(*texts: str) -> bytes:
    return bytes.fromhex(compute_fingerprint((text.encode(errors="surrogatepass") for text in texts), size=8))
