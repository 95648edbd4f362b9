"""What a search can be told is an argument of it, the same whoever asks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyencoder.errors import ConfigError, InputError
from polyencoder.index import Candidate, FolderIndex, SearchOptions, build_index
from polyencoder.index.searcher import Searcher

CONTEXT = ["do you ski ?", "no , i have two dogs ."]


@pytest.fixture(scope="module")
def built(tmp_path_factory, make_poly, sentences) -> Path:
    """An index of many candidates."""
    texts = [f"{text} {i}" for i in range(20) for text in sentences]
    folder = tmp_path_factory.mktemp("built") / "many"
    build_index(folder, [Candidate(str(i), text) for i, text in enumerate(texts)], make_poly())
    return folder


@pytest.fixture
def many(index) -> FolderIndex:
    """A copy of it."""
    return index


def test_options_and_their_fields_are_the_same(many, ranker):
    contexts = ranker.encode_contexts([CONTEXT])
    options = SearchOptions(top_k=3, exactness="exact")
    hits = many.search(contexts, top_k=3, exactness="exact")
    assert many.search(contexts, options) == hits
    assert many.search(contexts, options, top_k=2) == [hits[0][:2]]
    assert Searcher(ranker, many, options)([CONTEXT]) == [ranker.search(CONTEXT, many, options)]
    assert len(many.search(contexts)[0]) == len(many.search(contexts, top_k=None)[0]) == 10
    assert len(many.search(contexts, top_k=np.int64(4))[0]) == 4


def test_an_option_is_of_one_search_alone(many, ranker):
    pytest.importorskip("faiss")
    many.build_faiss("ivf-flat", nlist=4, nprobe=4)
    contexts = ranker.encode_contexts([CONTEXT])
    before = many.search(contexts)
    assert {hit.found for hit in many.search(contexts, effort=1, list_length=10)[0]} == {"approximate"}
    assert many.search(contexts) == before


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top_k": 0}, InputError, "top_k is 0"),
        ({"effort": 0}, InputError, r"effort is 0 \(int\); it must be at least 1"),
        ({"list_length": -1}, InputError, r"list_length is -1 \(int\); it must be at least 1"),
        ({"effort": "4"}, InputError, r"effort is '4' \(str\); it must be at least 1, a whole number"),
        ({"list_length": 2.5}, InputError, r"list_length is 2.5 \(float\); it must be at least 1, a whole number"),
        ({"exactness": "sure"}, ConfigError, "exactness is 'sure'"),
        ({"filter": "lang=en"}, InputError, "filter is 'lang=en'; it must be a dict"),
        ({"topk": 3}, TypeError, "topk"),
        ({"fusion": "rrf"}, TypeError, "'fusion'; it was removed: hybrid"),
    ],
)
def test_what_is_no_option(many, ranker, options, error, message):
    with pytest.raises(error, match=message):
        ranker.search(CONTEXT, many, **options)
    with pytest.raises(error, match=message):
        many.search(ranker.encode_contexts([CONTEXT]), **options)


@pytest.mark.parametrize("name", ["effort", "list_length"])
def test_without_lists_nothing_is_told_about_them(many, ranker, name):
    with pytest.raises(ConfigError, match=f"{name} given, but it has no FAISS index"):
        ranker.search(CONTEXT, many, **{name: 1})
