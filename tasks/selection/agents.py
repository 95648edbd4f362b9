"""The teachers of `-t selection:NAME`, by the names that ParlAI's loader looks for."""

from __future__ import annotations

from parlai.tasks.selection.convai2 import Convai2Teacher
from parlai.tasks.selection.sample import SampleTeacher

__all__ = ["Convai2Teacher", "DefaultTeacher", "SampleTeacher"]


class DefaultTeacher(SampleTeacher):
    """`-t selection` alone: the task that needs no download."""
