"""How well a ranker ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyencoder.encoding import BATCH_TOKENS
from polyencoder.errors import InputError
from polyencoder.models import CrossEncoder
from polyencoder.reading.examples import Example
from polyencoder.scoring import ContextEncoding
from polyencoder.text import token_batches

if TYPE_CHECKING:
    from polyencoder.ranker import Ranker


def recall_at_1(ranker: Ranker, examples: Sequence[Example]) -> float:
    """R@1 (0 to 1): how often the label is ranked first among the example's candidates.

    A bi- or poly-encoder encodes each different candidate once, and contexts of like length together.

    Raises:
        InputError: there is no example, or a label is not among its candidates.
    """
    if not examples:
        raise InputError("no example to evaluate the ranker on")
    for number, (_, label, candidates) in enumerate(examples, start=1):
        if label not in candidates:
            raise InputError(f"example {number}: the label {label!r} is not among its {len(candidates)} candidates")
    if isinstance(ranker.model, CrossEncoder):
        hits = sum(
            ranker.rank(context, candidates, top_k=1)[0].text == label for context, label, candidates in examples
        )
        return hits / len(examples)
    place = {text: i for i, text in enumerate(dict.fromkeys(text for *_, texts in examples for text in texts))}
    vectors = ranker.encode_candidates(list(place))
    lengths = [len(ranker.text.context_ids(context)) for context, *_ in examples]
    hits = 0
    for batch in token_batches(lengths, max_tokens=BATCH_TOKENS):
        contexts = ranker.encode_contexts([examples[i][0] for i in batch])
        for row, i in enumerate(batch):
            _, label, candidates = examples[i]
            mask = None if contexts.mask is None else contexts.mask[row : row + 1]
            context = ContextEncoding(contexts.vectors[row : row + 1], mask)
            scores = ranker.model.score(context, vectors[[place[text] for text in candidates]])
            hits += candidates[int(scores[0].argmax())] == label
    return hits / len(examples)
