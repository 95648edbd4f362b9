"""The teachers of `-t selection:NAME`, by the names that ParlAI's loader looks for."""

from __future__ import annotations

from typing import NoReturn

from parlai.agents.ranker.console import explain_errors
from parlai.tasks.selection.convai2 import Convai2Teacher
from parlai.tasks.selection.conversational import AmazonqaTeacher, RedditTeacher
from parlai.tasks.selection.dstc7 import Dstc7Teacher
from parlai.tasks.selection.pairs import JsonlTeacher
from parlai.tasks.selection.sample import SampleTeacher
from parlai.tasks.selection.ubuntu import UbuntuTeacher
from parlai.tasks.selection.wiki import WikiTeacher

from polyencoder.errors import ConfigError, suggest_similar

__all__ = [
    "AmazonqaTeacher",
    "Convai2Teacher",
    "DefaultTeacher",
    "Dstc7Teacher",
    "JsonlTeacher",
    "RedditTeacher",
    "SampleTeacher",
    "UbuntuTeacher",
    "WikiTeacher",
]


class DefaultTeacher(SampleTeacher):
    """`-t selection` alone: the task that needs no download."""


class UnknownTaskError(ConfigError, AttributeError):
    """An unknown `-t selection:NAME`. Also an AttributeError, as Python's import system expects."""


def __getattr__(name: str) -> NoReturn:
    """Raises UnknownTaskError where ParlAI's loader looks up the teacher of an unknown task."""
    if not name.endswith("Teacher"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    explain_errors()  # ParlAI calls no teacher's `add_cmdline_args`, which would do so
    unknown, *tasks = (teacher.removesuffix("Teacher").lower() for teacher in (name, *__all__))
    tasks.remove("default")
    hint = suggest_similar(unknown, tasks, listed=False, shown="selection:{}".format)
    raise UnknownTaskError(f"-t selection:{unknown}: there are {', '.join(tasks)}{hint}")
