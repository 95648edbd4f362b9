"""MAP: a linear map from the vectors of responses to those of contexts, trained on frozen embeddings.

The baseline of Henderson et al., "A repository of conversational datasets" (2019), which ConveRT's paper gives for
encoders that were not trained on responses (Section 3). As in its published code, a response's vector y becomes
(W + alpha I) y; W and alpha are trained with the cross-entropy over the batch, with L2 regularization of W, by Adagrad.
Learning rate and regularization are those of a grid that do best on held-out pairs.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.modeling.base import RankerModel
from polyencoder.ranker.scorer import Scorer
from polyencoder.settings.map import MapSettings
from polyencoder.training.losses import smoothed_cross_entropy

EVAL_CANDIDATES = 100
"""The number of candidates of an evaluation, as in the published code."""


class PairVectors(NamedTuple):
    """The encoded contexts and responses of pairs."""

    contexts: Tensor
    """[pairs, dim]."""
    responses: Tensor
    """[pairs, dim]."""
    texts: Tensor
    """[pairs]: ids of the response texts; equal responses are not negatives of each other."""

    def split(self, count: int) -> tuple[PairVectors, PairVectors]:
        """The first `count`, and the others."""
        places = torch.arange(len(self.texts))
        return self.take(places[:count]), self.take(places[count:])

    def take(self, rows: Tensor) -> PairVectors:
        return PairVectors(self.contexts[rows], self.responses[rows], self.texts[rows])


class LinearMap(NamedTuple):
    """The best map on the held-out pairs."""

    matrix: Tensor
    """[dim, dim]: W + alpha I."""
    recall: float
    """Held-out R@1 among `EVAL_CANDIDATES`; `before`: that of the unmapped vectors."""
    before: float
    learning_rate: float
    regularizer: float
    epochs: int
    """Epochs of training; 0 if no map was better than the identity."""


def pair_vectors(encoder: Scorer, pairs: Sequence[Example], *, progress: bool = False) -> PairVectors:
    """Encodes the contexts and responses of pairs; equal responses are encoded once.

    Raises:
        InputError: no pairs, or the encoder does not have one vector per context.
    """
    if encoder.model.has_vectors and not encoder.model.has_one_vector:
        raise InputError(
            f"a {encoder.model.title} has several vectors of a context, and a map takes one: give a bi-encoder",
            argument="model",
        )
    place = {text: i for i, text in enumerate(dict.fromkeys(pair.label for pair in pairs))}
    contexts = [pair.turns for pair in pairs]
    vectors = encoder.encode(contexts, kind="context", progress=progress, as_tensor=True)
    responses = encoder.encode(list(place), kind="candidate", progress=progress, as_tensor=True)
    texts = torch.tensor([place[pair.label] for pair in pairs], device=vectors.device)
    return PairVectors(vectors.clone(), responses[texts].clone(), texts)  # ordinary tensors, which can be trained on


def fit_map(
    train: PairVectors,
    held_out: PairVectors,
    settings: MapSettings,
    *,
    on_progress: Callable[[str], object] | None = None,
) -> LinearMap:
    """Trains a map for each point of the grid; returns the best.

    Args:
        train: at least two pairs.
        held_out: other pairs, to choose by recall.
        settings: the grid, and the other hyperparameters.
        on_progress: called with one line per finished trial.

    Raises:
        InputError: too few pairs.
    """
    if len(train.texts) < 2 or len(held_out.texts) < 2:
        raise InputError(
            f"{len(train.texts)} pairs to fit a map to and {len(held_out.texts)} held out are too few; give more"
        )
    identity = torch.eye(train.contexts.size(1), device=train.contexts.device)
    before = _recall(identity, held_out)
    best = unchanged = LinearMap(identity, before, before, 0.0, 0.0, 0)
    for rate, regularizer in itertools.product(settings.learning_rates, settings.regularizers):
        start = unchanged._replace(learning_rate=rate, regularizer=regularizer)
        found = _fit(start, train, held_out, settings)
        if on_progress is not None:
            line = f"learning rate {rate:g}, L2 {regularizer:g}: R@1 {found.recall:.3f} after {found.epochs} epochs"
            on_progress(line)
        best = found if found.recall > best.recall else best
    return best


def mapped(model: RankerModel, matrix: Tensor) -> RankerModel:
    """A copy of a ranker's model with candidates mapped by a matrix [dim, dim], after any existing map."""
    made = copy.deepcopy(model)
    layer = nn.Linear(model.dim, model.dim, bias=False, device=matrix.device)
    with torch.no_grad():
        layer.weight.copy_(matrix if made.candidate_map is None else matrix @ made.candidate_map.weight)
    made.set_candidate_map(layer)
    return made


def _fit(start: LinearMap, train: PairVectors, held_out: PairVectors, settings: MapSettings) -> LinearMap:
    """The best epoch of one trial, from W = 0 and alpha = 1, the identity, which is `start`."""
    identity = start.matrix
    weights, alpha = nn.Parameter(torch.zeros_like(identity)), nn.Parameter(identity.new_ones(()))
    optimizer = torch.optim.Adagrad([weights, alpha], lr=start.learning_rate, initial_accumulator_value=0.1)
    generator = torch.Generator().manual_seed(settings.seed)
    best, waited = start, 0
    for epoch in range(settings.max_epochs):
        for rows in torch.randperm(len(train.texts), generator=generator).split(settings.batch_size):
            loss = _loss(weights + alpha * identity, train.take(rows), smoothing=settings.label_smoothing)
            loss = loss + start.regularizer / 2 * weights.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        matrix = (weights + alpha * identity).detach()
        recall = _recall(matrix, held_out)
        if recall > best.recall:
            best, waited = best._replace(matrix=matrix, recall=recall, epochs=epoch + 1), 0
        else:
            waited += 1
            if waited == settings.patience:
                break
    return best


def _scores(matrix: Tensor, pairs: PairVectors) -> Tensor:
    """Scores of each context with each pair's response, [pairs, pairs]; -inf for another pair's equal response."""
    same = pairs.texts.unsqueeze(0) == pairs.texts.unsqueeze(1)
    same.fill_diagonal_(False)
    return (pairs.contexts @ (pairs.responses @ matrix.T).T).masked_fill(same, -torch.inf)


def _loss(matrix: Tensor, pairs: PairVectors, *, smoothing: float) -> Tensor:
    labels = torch.arange(len(pairs.texts), device=pairs.texts.device)
    return smoothed_cross_entropy(_scores(matrix, pairs), labels, smoothing=smoothing).mean()


@torch.no_grad()
def _recall(matrix: Tensor, pairs: PairVectors) -> float:
    """R@1 among the responses of `EVAL_CANDIDATES` pairs; 0 for a non-finite map (a diverged trial).

    A rest of fewer pairs, which are easier to rank, is left out, unless there are no others.
    """
    if not matrix.isfinite().all():
        return 0.0
    size = min(EVAL_CANDIDATES, len(pairs.texts))
    count, hits = len(pairs.texts) // size * size, 0
    for rows in torch.arange(count).split(size):
        scores = _scores(matrix, pairs.take(rows))
        hits += int((scores.argmax(1) == torch.arange(len(rows), device=scores.device)).sum())
    return hits / count
