"""What a ranker says of examples, and how well it ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from polyencoder.encoding import BATCH_TOKENS
from polyencoder.errors import InputError
from polyencoder.models import CrossEncoder
from polyencoder.reading.examples import Example
from polyencoder.text import token_batches

if TYPE_CHECKING:
    from polyencoder.ranker import Ranker


def recall_at_1(ranker: Ranker, examples: Sequence[Example]) -> float:
    """R@1 (0 to 1): how often the label is ranked first among the example's candidates.

    Raises:
        InputError: there is no example, or a label is not among its candidates.
    """
    if not examples:
        raise InputError("no example to evaluate the ranker on")
    for number, (_, label, candidates) in enumerate(examples, start=1):
        if label not in candidates:
            raise InputError(f"example {number}: the label {label!r} is not among its {len(candidates)} candidates")
    hits = sum(examples[i][2][int(scores.argmax())] == examples[i][1] for i, scores in example_scores(ranker, examples))
    return hits / len(examples)


def example_scores(ranker: Ranker, examples: Sequence[Example]) -> Iterator[tuple[int, Tensor]]:
    """The scores of each example's candidates, [candidates], with the example's place, in whichever order is quickest.

    A bi- or poly-encoder encodes each different candidate once, and contexts of like length together.
    """
    if isinstance(ranker.model, CrossEncoder):
        for i, (context, _, candidates) in enumerate(examples):
            yield i, ranker.score([context], candidates)[0]
        return
    place = {text: i for i, text in enumerate(dict.fromkeys(text for *_, texts in examples for text in texts))}
    vectors = ranker.encode_candidates(list(place))
    lengths = [len(ranker.text.context_ids(context)) for context, *_ in examples]
    for batch in token_batches(lengths, max_tokens=BATCH_TOKENS):
        contexts = ranker.encode_contexts([examples[i][0] for i in batch])
        for row, i in enumerate(batch):
            yield i, ranker.model.score(contexts.select(row), vectors[[place[text] for text in examples[i][2]]])[0]
