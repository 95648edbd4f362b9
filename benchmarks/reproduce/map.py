"""MAP: a linear map of a frozen encoder's response vectors, as one JSON object: `python -m benchmarks.reproduce.map`.

The baseline of Henderson et al., "A repository of conversational datasets" (2019), which ConveRT's paper gives for
encoders that were not trained on responses (Section 3). As in its published code, a response's vector y becomes
(W + alpha I) y; W and alpha are trained by Adagrad with the cross-entropy over batches of 256 pairs, label smoothing
and L2 regularization of W. The last fifth of the pairs chooses learning rate, regularization and epoch. Unlike there, W
starts at 0, so that training starts from the encoder's own vectors, and equal responses are not each other's negatives.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from polyencoder.data.example import Example
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import add_sampled_candidates, read_all_pairs, read_responses
from polyencoder.evaluation.examples import tally_scores
from polyencoder.evaluation.metrics import ranks
from polyencoder.ranker import Ranker
from polyencoder.training.losses import softmax_loss

LEARNING_RATES, REGULARIZERS = (0.3, 0.1, 0.03, 0.01), (1.0, 0.1, 0.01, 0.0)
BATCH_SIZE, PATIENCE, MAX_EPOCHS, LABEL_SMOOTHING, SEED = 256, 10, 100, 0.2, 0
EVAL_CANDIDATES = 100


class PairVectors(NamedTuple):
    """The contexts and responses of pairs, [pairs, dim], and ids of the response texts, [pairs]."""

    contexts: Tensor
    responses: Tensor
    texts: Tensor

    def take(self, rows: Tensor) -> PairVectors:
        return PairVectors(self.contexts[rows], self.responses[rows], self.texts[rows])

    def score(self, matrix: Tensor) -> Tensor:
        """Scores of each context with each response, [pairs, pairs]; -inf for another pair's equal response."""
        same = self.texts.unsqueeze(0) == self.texts.unsqueeze(1)
        same.fill_diagonal_(False)
        return (self.contexts @ (self.responses @ matrix.T).T).masked_fill(same, -torch.inf)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--max-epochs", type=int, default=MAX_EPOCHS)
    flags = parser.parse_args(arguments)
    ranker = Ranker.from_backbone(flags.encoder, share_encoders=True)
    pairs = list(read_all_pairs(flags.train))
    count = round(0.8 * len(pairs))
    held_out = random.Random(SEED).sample(pairs[count:], len(pairs) - count)  # not among its own dialogue's pairs
    vectors = encode_pairs(ranker, [*pairs[:count], *held_out])
    train, rest = (vectors.take(rows) for rows in torch.arange(len(pairs)).tensor_split([count]))
    matrix, recall = fit_map(train, rest, max_epochs=flags.max_epochs)
    tested = list(read_all_pairs(flags.test))
    sampler = NegativeSampler(read_responses(tested), count=EVAL_CANDIDATES - 1, seed=SEED, source=flags.test)
    examples = add_sampled_candidates(tested, sampler)
    print(json.dumps({"held_out": recall, **evaluate_map(ranker, examples, matrix)}))


def encode_pairs(ranker: Ranker, pairs: Sequence[Example]) -> PairVectors:
    """Encodes pairs; equal responses are encoded once."""
    ids = {text: i for i, text in enumerate(dict.fromkeys(pair.label for pair in pairs))}
    contexts = torch.from_numpy(ranker.encode([pair.turns for pair in pairs], kind="context"))
    texts = torch.tensor([ids[pair.label] for pair in pairs])
    return PairVectors(contexts, torch.from_numpy(ranker.encode(list(ids), kind="candidate"))[texts], texts)


def fit_map(train: PairVectors, held_out: PairVectors, *, max_epochs: int = MAX_EPOCHS) -> tuple[Tensor, float]:
    """The best map [dim, dim] of the grid and its R@1 on the held-out pairs; the identity if no map is better."""
    identity = torch.eye(train.contexts.size(1))
    best, best_recall = identity, compute_recall_at_1(identity, held_out)
    for rate, regularizer in itertools.product(LEARNING_RATES, REGULARIZERS):
        weights, alpha = nn.Parameter(torch.zeros_like(identity)), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.Adagrad([weights, alpha], lr=rate, initial_accumulator_value=0.1)
        generator = torch.Generator().manual_seed(SEED)
        trial_recall, waited = compute_recall_at_1(identity, held_out), 0
        for _ in range(max_epochs):
            for rows in torch.randperm(len(train.texts), generator=generator).split(BATCH_SIZE):
                scores = train.take(rows).score(weights + alpha * identity)
                loss = softmax_loss(scores, torch.eye(len(rows)), smoothing=LABEL_SMOOTHING).mean()
                optimizer.zero_grad()
                (loss + regularizer / 2 * weights.square().sum()).backward()
                optimizer.step()
            matrix = (weights + alpha * identity).detach()
            recall = compute_recall_at_1(matrix, held_out)
            waited = 0 if recall > trial_recall else waited + 1
            trial_recall = max(recall, trial_recall)
            if recall > best_recall:
                best, best_recall = matrix, recall
            if waited == PATIENCE:
                break
    return best, best_recall


@torch.no_grad()
def compute_recall_at_1(matrix: Tensor, pairs: PairVectors) -> float:
    """R@1 among the responses of 100 pairs; a rest of fewer, which are easier to rank, is left out."""
    size = min(EVAL_CANDIDATES, len(pairs.texts))
    groups = torch.arange(len(pairs.texts) // size * size).split(size)
    firsts = [ranks(pairs.take(rows).score(matrix), torch.arange(size)) == 1 for rows in groups]
    return torch.cat(firsts).float().mean().item()


def evaluate_map(ranker: Ranker, examples: Sequence[Example], matrix: Tensor) -> dict[str, float]:
    """The metrics of mapped vectors on examples with candidates."""
    ids = {text: i for i, text in enumerate(dict.fromkeys(text for example in examples for text in example.choices))}
    mapped = torch.from_numpy(ranker.encode(list(ids), kind="candidate")) @ matrix.T
    contexts = torch.from_numpy(ranker.encode([example.turns for example in examples], kind="context"))
    scores = (mapped[[ids[text] for text in example.choices]] @ contexts[i] for i, example in enumerate(examples))
    return tally_scores(examples, enumerate(scores)).report()


if __name__ == "__main__":
    main()
