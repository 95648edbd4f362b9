from __future__ import annotations

import pytest

from polyencoder.text.subwords.tokenizer import SubwordTokenizer


@pytest.fixture(scope="session")
def stub_tokenizer(stubs) -> SubwordTokenizer:
    return SubwordTokenizer(stubs["vocabulary"], buckets=stubs["buckets"])
