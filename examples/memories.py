"""Memories of an assistant: which notes about the user does this conversation need, if any?

    python examples/memories.py

Notes are candidates, the conversation is the query. A calibrated ranker gives each note a probability, so that a
conversation that needs none gets none.
"""

from __future__ import annotations

from polyencoder import Ranker, Selector

NOTES = [
    "The user lives in Graz, near the main station.",
    "The user is vegetarian and does not like mushrooms.",
    "The user's daughter Mia has her birthday on 12 May.",
    "The user prefers trains to planes.",
    "The user works as a nurse, mostly on night shifts.",
    "The user's cat is called Luna and needs tablets twice a day.",
]
CONVERSATIONS = [
    ["What shall I cook tonight?"],
    ["I have to travel to Vienna.", "When?", "Monday. How do I get there?"],
]


def main(model: str = "sentence-transformers/all-MiniLM-L6-v2", *, min_probability: float | None = None) -> None:
    selector = Selector(Ranker.load(model))
    for messages in CONVERSATIONS:
        selection = selector.select(messages, NOTES, top_k=2, min_probability=min_probability)
        print(messages[-1], *(f"  {note.score:5.2f}  {note.option}" for note in selection.chosen), sep="\n")


if __name__ == "__main__":
    main()
