"""What tests of the readers share: files of a few bytes, and their records beside what was skipped."""

from __future__ import annotations

import pytest

from polyencoder.data.readers import BadExamples, iter_records


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: str | bytes):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def read_all(path, **options) -> tuple[list[dict], BadExamples]:
    bad = BadExamples(skip=True)
    return [record for _, record in iter_records(path, bad=bad, **options)], bad
