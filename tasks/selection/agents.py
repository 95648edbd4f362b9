"""The teachers of `-t selection:NAME`, by the names that ParlAI's loader looks for."""

from __future__ import annotations

from parlai.tasks.selection.convai2 import Convai2Teacher
from parlai.tasks.selection.conversational import AmazonqaTeacher, RedditTeacher
from parlai.tasks.selection.dstc7 import Dstc7Teacher
from parlai.tasks.selection.pairs import JsonlTeacher
from parlai.tasks.selection.sample import SampleTeacher
from parlai.tasks.selection.ubuntu import UbuntuTeacher
from parlai.tasks.selection.wiki import WikiTeacher

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
