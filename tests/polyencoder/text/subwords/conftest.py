from __future__ import annotations

import json
from pathlib import Path

import pytest

from polyencoder.text.subwords import SubwordTokenizer


@pytest.fixture(scope="session")
def stubs() -> dict:
    """What PolyAI's test modules compute: see convert_stubs/README.md."""
    return json.loads((Path(__file__).parents[2] / "convert_stubs" / "stubs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def stub_tokenizer(stubs) -> SubwordTokenizer:
    return SubwordTokenizer(stubs["vocabulary"], buckets=stubs["buckets"])
