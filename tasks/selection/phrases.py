"""The phrases of the sample task, from `phrases.json`: persona facts, facts that the partner states, small talk.

A value has a `plain` form ("two dogs") and a `hint` that means the same in other words ("they bark whenever the
mailman comes"), so that matching words is not enough to find the right reply. Within a topic no two values mean the
same, and no sentence of one topic answers the question of another: so exactly one candidate is right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Value(NamedTuple):
    plain: str
    hint: str = ""

    def fill(self, template: str) -> str:
        return template.format(plain=self.plain, hint=self.hint)


@dataclass(frozen=True)
class PersonaTopic:
    """A fact that a persona line states and the partner may ask about."""

    name: str
    facts: tuple[str, ...]
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class StatedTopic:
    """A fact that the partner states and may ask for some turns later."""

    name: str
    statements: tuple[str, ...]
    acknowledgements: tuple[str, ...]
    questions: tuple[str, ...]
    recalls: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True)
class TalkTopic:
    """Small talk, whose reply depends only on the last utterance."""

    prompts: tuple[str, ...]
    replies: tuple[str, ...]


def _convert_topic(topic: dict[str, Any]) -> dict[str, Any]:
    """Converts a topic from JSON: texts to tuples; values, a plain form or one with a hint, to `Value`s."""
    fields = {name: tuple(texts) if isinstance(texts, list) else texts for name, texts in topic.items()}
    if "values" in fields:
        fields["values"] = tuple(Value(*([value] if isinstance(value, str) else value)) for value in fields["values"])
    return fields


_TABLE = json.loads(Path(__file__).with_name("phrases.json").read_text(encoding="utf-8"))
OPENERS: list[str] = _TABLE["openers"]
PERSONA = [PersonaTopic(**_convert_topic(topic)) for topic in _TABLE["persona"]]
STATED = [StatedTopic(**_convert_topic(topic)) for topic in _TABLE["told"]]
TALK = [TalkTopic(**_convert_topic(topic)) for topic in _TABLE["talk"]]
