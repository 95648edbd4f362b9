"""Shared by the tests of tasks: their official files in miniature, and ParlAI's teachers by name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch
from parlai.core.params import ParlaiParser
from parlai.core.teachers import create_task_agent_from_taskname

from tests import task_files
from tests.plain_reports import plain_reports  # noqa: F401 - a fixture

torch.set_num_threads(1)


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


@pytest.fixture
def texts():
    """(teacher, count) -> the texts of so many messages, as a training run gets them."""
    return lambda teacher, count: [message["text"] for message in islice(iter(teacher.act, None), count)]


@pytest.fixture
def real_path(data_path):
    """(path below ../shared/data) -> that file or folder, or the test is skipped."""

    def find(name: str) -> Path:
        if not (data_path / name).exists():
            pytest.skip(f"no real data: ../shared/data/{name} does not exist")
        return data_path / name

    return find


@pytest.fixture(scope="session")
def write():
    """(path, content) -> the path, written: text, bytes, or records as JSON lines; gzipped if its name says so."""
    return task_files.write


@pytest.fixture(scope="session")
def write_csv():
    """(path, header, rows, delimiter=",") -> the path."""
    return task_files.write_csv


@pytest.fixture(scope="session")
def make_dialogue():
    """(number, turns=3, options=5, answered=True) -> a dialogue as DSTC7's files have it."""
    return task_files.dialogue


@pytest.fixture(scope="session")
def datapath(tmp_path_factory) -> Path:
    """A folder with small official files of every task, marked as ParlAI marks what it has downloaded."""
    return task_files.make_datapath(tmp_path_factory.mktemp("datapath"))


@pytest.fixture
def pairs(tmp_path, write):
    """(count) -> a file of so many pairs `question N`, `answer N`, and the option that names it."""

    def make(count: int, *, name: str = "pairs.jsonl", **fields) -> dict[str, str]:
        records = ({"context": f"question {n}", "response": f"answer {n}"} | fields for n in range(count))
        return {"selection_file": str(write(tmp_path / name, records))}

    return make
