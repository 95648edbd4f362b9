"""R@1/20 without learning, on the sample task's validation split: `python -m parlai.tasks.selection.baselines`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from parlai.tasks.selection.sample import sample_dialogues
from sklearn.feature_extraction.text import TfidfVectorizer

from polyencoder.data.seeded_random import SeededRandom

__all__ = ["baselines"]


class Example(NamedTuple):
    context: str  # persona and the whole history
    message: str  # the last utterance alone
    candidates: list[str]
    right: int


def baselines() -> dict[str, float]:
    """Recall at 1 of 20 by baseline: a random choice, and TF-IDF's cosine with the last message or the whole context.

    TF-IDF learns its weights from the training split's contexts and labels.
    """
    train, valid = list(_examples("train")), list(_examples("valid"))
    tfidf = TfidfVectorizer(token_pattern=r"\S+")
    tfidf.fit([text for e in train for text in (e.context, e.candidates[e.right])])

    def best(text: str, candidates: list[str]) -> int:
        return int((tfidf.transform(candidates) @ tfidf.transform([text]).T).toarray().argmax())

    rng = SeededRandom("baseline")
    choices = {
        "random": [rng.below(len(e.candidates)) for e in valid],
        "tfidf_message": [best(e.message, e.candidates) for e in valid],
        "tfidf_context": [best(e.context, e.candidates) for e in valid],
    }
    return {
        name: sum(choice == e.right for choice, e in zip(chosen, valid, strict=True)) / len(valid)
        for name, chosen in choices.items()
    }


def _examples(split: str) -> Iterator[Example]:
    for dialogue in sample_dialogues(split):
        history = [f"your persona: {fact}" for fact in dialogue.persona]
        for turn in dialogue.turns:
            history.append(turn.text)
            right = turn.candidates.index(turn.label)
            yield Example("\n".join(history), turn.text, [reply.text for reply in turn.candidates], right)
            history.append(turn.label.text)


if __name__ == "__main__":
    for name, recall in baselines().items():
        sys.stdout.write(f"{name:15} R@1/20 {recall:.3f}\n")
