"""Writes the dialogues of the sample task from a seed.

A dialogue has four turns and a speaker with a persona of four facts. In each turn the partner asks about a fact of the
persona, states a fact, asks for one stated two or more turns ago, or makes small talk. Every sentence has a meaning,
(topic, value): a candidate is right if and only if its meaning equals the label's, so every distractor has another
meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parlai.tasks.selection.phrases import OPENERS, PERSONA, STATED, TALK, PersonaTopic, StatedTopic, TalkTopic, Value

from polyencoder.data.seeded_random import SeededRandom

CANDIDATES = 20
FACTS = 4
TURNS = 4
# The partner's actions in the four turns. `recall` comes two or more turns after `tell`.
PLANS = (
    ("tell", "ask", "recall", "ask"),
    ("tell", "ask", "talk", "recall"),
    ("talk", "tell", "ask", "recall"),
    ("talk", "ask", "tell", "ask"),
    ("ask", "talk", "tell", "ask"),
    ("ask", "ask", "talk", "ask"),
)
# The kinds of the 19 distractors; random replies replace kinds that a dialogue cannot provide (no history yet, ...).
SAME_TOPIC = 5  # an answer to the same question with another value: it contradicts the persona or the history
SAME_SPEAKER = 6  # true in this dialogue, but not an answer to this question


class Reply(NamedTuple):
    text: str
    meaning: tuple[str, str]


class Turn(NamedTuple):
    text: str  # the partner's utterance
    label: Reply
    candidates: tuple[Reply, ...]  # CANDIDATES of them, distinct, the label among them


class Dialogue(NamedTuple):
    persona: tuple[str, ...]
    turns: tuple[Turn, ...]


def write_dialogues(split: str, count: int, *, seed: int) -> Iterator[Dialogue]:
    """`count` dialogues; equal arguments give equal dialogues on every platform, other splits and seeds others."""
    return (write_dialogue(SeededRandom(f"{seed}:{split}:{number}")) for number in range(count))


def write_dialogue(rng: SeededRandom) -> Dialogue:
    return _Writer(rng).compose_dialogue()


class _Writer:
    """Writes one dialogue; its state is the history so far."""

    def __init__(self, rng: SeededRandom) -> None:
        self.rng = rng
        self.facts = [(topic, rng.choose(topic.values)) for topic in rng.sample(PERSONA, FACTS)]
        self.unasked = rng.shuffle_buffered(self.facts)
        self.unstated = rng.shuffle_buffered(STATED)
        self.stated: list[tuple[StatedTopic, Value]] = []
        self.replies: list[Reply] = []

    def compose_dialogue(self) -> Dialogue:
        rng = self.rng
        persona = tuple(value.fill(rng.choose(topic.facts)) for topic, value in self.facts)
        turns = []
        for act in rng.choose(PLANS):
            turns.append(getattr(self, act)())
            self.replies.append(turns[-1].label)
        return Dialogue(persona, tuple(turns))

    # Turns.

    def ask(self) -> Turn:
        topic, value = self.unasked.pop()
        text = self.rng.choose(topic.questions)
        same = self.rng.shuffle_buffered([other for other in topic.values if other is not value])
        if self.rng.draw_chance(0.3):  # the partner states their own value first: the history contains the wrong words
            theirs = self.rng.choose(same)
            text = f"{theirs.fill(self.rng.choose(topic.facts))} {text}"
            same = [theirs, *(other for other in same if other is not theirs)]
        return self.build_turn(
            text, self.answer(topic, value), [self.answer(topic, other) for other in same[:SAME_TOPIC]]
        )

    def tell(self) -> Turn:
        topic = self.unstated.pop()
        value = self.rng.choose(topic.values)
        self.stated.append((topic, value))
        text = value.fill(self.rng.choose(topic.statements))
        return self.build_turn(text, self.acknowledge(topic, value), [self.acknowledge(topic, v) for v in topic.values])

    def recall(self) -> Turn:
        topic, value = self.rng.choose(self.stated)
        text = self.rng.choose(topic.questions)
        return self.build_turn(text, self.remind(topic, value), [self.remind(topic, v) for v in topic.values])

    def talk(self) -> Turn:
        topic = self.rng.choose(TALK)
        return self.build_turn(self.rng.choose(topic.prompts), self.chat(topic), [])

    # Replies.

    def answer(self, topic: PersonaTopic, value: Value) -> Reply:
        return self.write_reply(value.fill(self.rng.choose(topic.answers)), topic.name, value.plain)

    def acknowledge(self, topic: StatedTopic, value: Value) -> Reply:
        return self.write_reply(value.fill(self.rng.choose(topic.acknowledgements)), topic.name, value.plain)

    def remind(self, topic: StatedTopic, value: Value) -> Reply:
        return self.write_reply(value.fill(self.rng.choose(topic.recalls)), topic.name, value.plain)

    def chat(self, topic: TalkTopic) -> Reply:
        return self.write_reply(self.rng.choose(topic.replies), "talk", topic.prompts[0])

    def write_reply(self, words: str, topic: str, value: str) -> Reply:
        end = "" if words.endswith(("?", "!")) else " ."
        return Reply(f"{self.rng.choose(OPENERS)} {words}{end}".strip(), (topic, value))

    def draw_reply(self) -> Reply:
        """A reply from another dialogue."""
        kind = self.rng.draw_below(4)
        if kind == 0:
            return self.chat(self.rng.choose(TALK))
        if kind == 1:
            topic = self.rng.choose(STATED)
            write = self.remind if self.rng.draw_chance(0.5) else self.acknowledge
            return write(topic, self.rng.choose(topic.values))
        topic = self.rng.choose(PERSONA)
        return self.answer(topic, self.rng.choose(topic.values))

    # Candidates.

    def build_turn(self, text: str, label: Reply, same_topic: list[Reply]) -> Turn:
        """Completes a turn: the label and its distractors in random order."""
        speaker = [
            *self.replies[-1:],  # word for word: rankers tend to repeat themselves
            *(self.answer(topic, value) for topic, value in self.facts),
            *(self.remind(topic, value) for topic, value in self.stated),
        ]
        chosen = {label.text: label}

        def add(replies: list[Reply], count: int) -> None:
            usable = {r.text: r for r in replies if r.meaning != label.meaning and r.text not in chosen}
            chosen.update((r.text, r) for r in self.rng.sample(list(usable.values()), count))

        add(same_topic, SAME_TOPIC)
        add(speaker, SAME_SPEAKER)
        while len(chosen) < CANDIDATES:
            add([self.draw_reply()], 1)
        return Turn(text, label, tuple(self.rng.shuffle_buffered(list(chosen.values()))))
