"""Shared by the tests of tasks."""

from __future__ import annotations

import pytest
from parlai.core.params import ParlaiParser
from parlai.core.teachers import create_task_agent_from_taskname


@pytest.fixture
def make_teacher():
    """(task, datatype="valid", **options) -> the teacher that `parlai -t task` makes."""

    def make(task: str, *, datatype: str = "valid", **options):
        opt = ParlaiParser(True, False).parse_kwargs(task=task, datatype=datatype)
        opt.update(options)  # flags of an agent too, which no agent's parser is here to know
        return create_task_agent_from_taskname(opt)[0]

    return make


@pytest.fixture
def messages():
    """(teacher) -> all messages of one epoch."""
    return lambda teacher: [message for message, _ in zip(teacher, range(teacher.num_examples()), strict=False)]
