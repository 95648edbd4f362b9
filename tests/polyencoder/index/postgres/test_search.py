"""Searches in PostgreSQL give what a scan in memory gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import polyencoder.index.postgres.table as table_module
from polyencoder.errors import ConfigError
from polyencoder.scoring import ContextEncoding, score
from tests.polyencoder.index.postgres.tables import drawn, ids, names, scanned, stored


def test_lists_of_a_flat_table_certify(where):
    vectors, contexts = drawn(400, 2, 24)
    (hits,) = stored(where, vectors).search(contexts.select(slice(0, 1)), top_k=3, exactness="certified")
    assert {hit.found for hit in hits} == {"certified"}


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=0, rows=16, codes=1, dim=1, k=2, length=1, integers=True)  # a code of zeros: every score is the bound
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 60),
    codes=st.integers(1, 5),
    dim=st.integers(1, 9),
    k=st.integers(1, 12),
    length=st.integers(1, 80),
    integers=st.booleans(),
)
def test_any_shape(postgres, seed, rows, codes, dim, k, length, integers):
    """Whole numbers make many ties."""
    vectors, contexts = drawn(rows, codes, dim, seed=seed, contexts=2)
    if integers:
        vectors = vectors.round()
        contexts = ContextEncoding(
            contexts.vectors.round(), torch.tensor([[True] * codes, [True] + [False] * (codes - 1)])
        )
    index = stored(f"{postgres.address}#{next(names)}", vectors)
    expected = score(contexts, torch.from_numpy(vectors)).topk(min(k, rows)).values
    for exactness in ("exact", "certified"):
        results = index.search(contexts, top_k=k, exactness=exactness, list_length=length)
        scores = torch.tensor([[hit.score for hit in hits] for hits in results])
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
        if not integers or codes == 1:
            for hits, best in zip(results, scanned(contexts, vectors, k=k), strict=True):
                # A certificate proves that no score is higher; a list may lack candidates that equal the last
                proven = len(hits) if exactness == "exact" else sum(hit.score > hits[-1].score for hit in hits)
                assert [hit.id for hit in hits[:proven]] == best[:proven]
    index.close()


@pytest.mark.parametrize(("kind", "options"), [("hnsw,m=8", {}), ("ivf-flat,nlist=4", {"effort": 4})])
def test_an_index_of_pgvector_finds_most_and_says_that_it_is_approximate(where, kind, options, monkeypatch):
    vectors, contexts = drawn(600, 4, 16, contexts=5)
    index = stored(where, vectors, [{"n": i % 3} for i in range(600)], kind=kind)
    monkeypatch.setattr(table_module, "_SCAN_ROWS", 100)
    hits = index.search(contexts, top_k=10, list_length=100, **options)
    expected = scanned(contexts, vectors, k=10)
    matches = sum(len(set(a) & set(b)) for a, b in zip(ids(hits), expected, strict=True))
    assert matches >= 40
    assert {hit.found for context_hits in hits for hit in context_hits} == {"approximate"}
    assert ids(index.search(contexts, top_k=10, exactness="certified")) == expected
    assert {hit.metadata["n"] for row in index.search(contexts, filter={"n": 1}) for hit in row} == {1}
    monkeypatch.setattr(table_module, "_SCAN_ROWS", 200)
    filtered = index.search(contexts, filter={"n": 1}, list_length=40)  # so few are compared, which proves
    assert ids(index.search(contexts, filter={"n": 1}, list_length=40, exactness="certified")) == ids(filtered)
    assert {hit.found for context_hits in filtered for hit in context_hits} == {"certified"}


def test_an_index_that_somebody_added_makes_no_list_approximate(where):
    vectors, contexts = drawn(600, 4, 16, contexts=5)
    index = stored(where, vectors)
    with index._database.changing() as session:
        index._open_table(session).ask("CREATE INDEX ON {table} USING hnsw (vector vector_ip_ops) WITH (m = 2)")
    assert ids(index.search(contexts, top_k=10, exactness="certified")) == scanned(contexts, vectors, k=10)


def test_an_option_without_use_is_an_error(where):
    index = stored(where, drawn(5, 1, 4)[0])
    with pytest.raises(ConfigError, match="effort"):
        index.search(drawn(1, 1, 4)[1], effort=5)


def test_what_rounding_could_hide_is_scanned(where):
    """Inner products that differ by less than float4 tells: a short list proves nothing, though its bound seems to."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 64, generator=generator) + 3e-7 * torch.randn(400, 64, generator=generator)
    contexts = ContextEncoding(torch.randn(8, 3, 64, generator=generator))
    hits = stored(where, vectors.numpy()).search(contexts, top_k=3, exactness="certified", list_length=3)
    assert {hit.found for context_hits in hits for hit in context_hits} == {"exact"}
