"""FAISS search against the scan: certified results are the true ones, and full lists give everything."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.faiss import search as approximate
from polyencoder.index.faiss.file import FaissFile, build_faiss
from polyencoder.index.faiss.kinds import KINDS
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.modeling.multihead import CandidateAttention
from polyencoder.scoring import ContextEncoding
from polyencoder.search.contexts import Contexts
from polyencoder.search.scan import search
from polyencoder.search.scores import score
from polyencoder.storage.signatures import sign_file
from polyencoder.validation import from_json_values
from tests.small_faiss import SMALL, filters_reach_faiss  # noqa: F401 the fixture works where it is imported

faiss = pytest.importorskip("faiss", reason="faiss is not installed: pip install 'parlai-polyencoder[faiss]'")


def contexts_of(vectors: torch.Tensor, mask: torch.Tensor | None = None) -> Contexts:
    return Contexts.from_encoding(ContextEncoding(vectors, mask))


def check_against_scan(hits, searcher, contexts, **query):
    """The hits have the scan's scores, and no row occurs twice."""
    allowed = query.get("allowed")
    k = min(query.pop("top_k"), len(searcher.vectors) if allowed is None else int(allowed.sum()))
    if k == 0:
        assert hits.rows.shape == (contexts.batch_size, 0)
        return
    expected = search(contexts, searcher.vectors, k=k, **query)
    assert hits.rows.shape == expected.rows.shape
    np.testing.assert_allclose(hits.scores, expected.scores, rtol=1e-4, atol=1e-4)
    for rows, expected_rows in zip(hits.rows.tolist(), expected.rows.tolist(), strict=True):
        assert len(set(rows)) == len(expected_rows)


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_under_multi_head_attention_everything_is_scanned(kind, make_search):
    """No inner product with a code bounds a score: what is found is exact, and says so."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(90, 8), kind=kind, **SMALL[kind])
    with torch.no_grad():
        contexts = Contexts.from_encoding(CandidateAttention(8, 2)(ContextEncoding(torch.randn(3, 4, 8))))
    whole = score(contexts, searcher.vectors.take(np.arange(90)), attention="multihead")
    for exactness in ("approximate", "certified"):
        hits = searcher.search(contexts, top_k=5, attention="multihead", exactness=exactness)
        assert hits.exactness == ["exact"] * 3
        np.testing.assert_allclose(hits.scores, -np.sort(-whole)[:, :5], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.take_along_axis(whole, hits.rows, 1), hits.scores, rtol=1e-4, atol=1e-4)


def adversarial(n, batch, codes, dim, *, seed, stretch, whole):
    """Contexts and rows with many ties (`whole`), and some rows that are best by no code but good by all of them."""
    torch.manual_seed(seed)
    contexts = stretch * torch.randn(batch, codes, dim)
    values = torch.randn(n, dim)
    mean = contexts[0].mean(dim=0)
    values[: n // 3] = mean / mean.norm().clamp(min=1e-3) * torch.rand(n // 3, 1) * 2
    values[0] = 30 * values[-1]  # a long one
    if whole:
        contexts, values = contexts.round(), values.round()
    return contexts, values


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 10**6),
    st.integers(5, 90),
    st.integers(1, 3),
    st.integers(1, 6),
    st.sampled_from([1, 4]),
    st.sampled_from(["basic", "sqrt"]),
    st.sampled_from([0.1, 1.0, 5.0]),
    st.sampled_from([None, 0.3, 0.9]),
    st.integers(0, 10),
    st.booleans(),
    st.integers(1, 6),
)
def test_certified_results_are_the_truth(
    make_search, seed, n, batch, codes, nlist, attention, stretch, share, newer, whole, length
):
    contexts, values = adversarial(n + newer, batch, codes, 4, seed=seed, stretch=stretch, whole=whole)
    searcher = make_search(values[:n], kind="ivf-flat", newer=values[n:], nlist=nlist)
    mask = torch.rand(batch, codes) < 0.7
    context = contexts_of(contexts, mask)
    allowed = None if share is None else (torch.rand(n + newer) < share).numpy()
    query = {"top_k": int(torch.randint(1, n, ())), "allowed": allowed, "attention": attention}
    hits = searcher.search(context, exactness="certified", list_length=length, **query)
    assert set(hits.exactness) <= {"certified", "exact"}
    check_against_scan(hits, searcher, context, **query)


@pytest.mark.parametrize("exactness", ["approximate", "certified"])
def test_one_code_is_certified_without_doubling(make_search, exactness, monkeypatch):
    """A bi-encoder's score is the inner product, so the lists themselves are the answer."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(300, 8))
    monkeypatch.setattr(approximate, "search", lambda *_, **__: pytest.fail("scanned"))
    hits = searcher.search(contexts_of(torch.randn(4, 1, 8)), top_k=5, exactness=exactness)
    assert hits.exactness == ["certified"] * 4


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 10**6),
    st.sampled_from(list(KINDS)),
    st.sampled_from(["float32", "float16", "bfloat16", "int8"]),
    st.sampled_from(["basic", "sqrt"]),
    st.sampled_from([None, 0.5]),
    st.integers(0, 20),
)
def test_full_lists_give_everything(make_search, seed, kind, dtype, attention, share, newer):
    torch.manual_seed(seed)
    values = torch.randn(60 + newer, 8)
    searcher = make_search(values[:60], kind=kind, dtype=dtype, newer=values[60:], **SMALL[kind])
    contexts = contexts_of(torch.randn(3, 4, 8))
    allowed = None if share is None else (torch.rand(len(values)) < share).numpy()
    query = {"top_k": 9, "attention": attention, "allowed": allowed}
    hits = searcher.search(contexts, list_length=60, effort=1000, **query)
    if kind == "hnsw" and share is not None:
        return  # its graph may not reach every allowed row
    check_against_scan(hits, searcher, contexts, **query)
    proven = searcher.meta.has_exact_lists
    assert set(hits.exactness) == ({"certified"} if proven else {"approximate"})


@pytest.mark.parametrize("kind", KINDS)
def test_only_allowed_rows_are_found(make_search, kind):
    torch.manual_seed(0)
    searcher = make_search(torch.randn(400, 8), kind=kind, newer=torch.randn(30, 8), **SMALL[kind])
    allowed = (torch.rand(430) < 0.2).numpy()
    hits = searcher.search(contexts_of(torch.randn(5, 3, 8)), top_k=20, allowed=allowed)
    assert hits.rows.shape == (5, 20)
    assert allowed[hits.rows].all()
    three = np.zeros(430, dtype=bool)
    three[[3, 77, 410]] = True
    hits = searcher.search(contexts_of(torch.randn(2, 3, 8)), top_k=20, allowed=three)
    assert np.sort(hits.rows).tolist() == [[3, 77, 410]] * 2


@pytest.mark.parametrize("kind", ["hnsw", "ivf-flat", "ivf-pq"])
def test_lists_of_one_probe_are_called_approximate(make_search, kind):
    torch.manual_seed(0)
    searcher = make_search(torch.randn(400, 8), kind=kind, **SMALL[kind])
    contexts = contexts_of(torch.randn(6, 3, 8))
    hits = searcher.search(contexts, top_k=5, effort=1)
    assert hits.exactness == ["approximate"] * 6
    best = search(contexts, searcher.vectors, k=400)
    for scores, rows, all_scores, all_rows in zip(*hits[:2], *best, strict=True):
        position = {row: i for i, row in enumerate(all_rows.tolist())}
        np.testing.assert_allclose(scores, all_scores[[position[row] for row in rows.tolist()]], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_that_are_alike_ask_together(make_search, kind, monkeypatch):
    """Two groups of codes are two queries, whose lists prove nothing; with a certificate wanted, each code asks."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(300, 8), kind=kind, **SMALL[kind])
    codes = torch.eye(8)[:2].repeat_interleave(5, dim=0) + 0.01 * torch.randn(2, 10, 8)
    contexts = contexts_of(4 * codes, torch.arange(10).expand(2, 10) < 8)
    sizes = []
    lists = searcher.index.search
    monkeypatch.setattr(searcher.index, "search", lambda q, *a, **k: (sizes.append(len(q)), lists(q, *a, **k))[1])
    hits = searcher.search(contexts, top_k=5, list_length=200, effort=300)
    assert sizes == [2 * 2]
    assert hits.exactness == ["approximate"] * 2
    check_against_scan(hits, searcher, contexts, top_k=5)
    sizes.clear()
    certified = searcher.search(contexts, top_k=5, list_length=200, exactness="certified")
    assert sizes == ([2 * 8] if searcher.meta.has_exact_lists else [])
    check_against_scan(certified, searcher, contexts, top_k=5)


def test_codes_of_four_bits_are_scanned_fast(make_search):
    """With filters and newer rows, and the scan's scores."""
    torch.manual_seed(0)
    values = torch.randn(400, 8)
    searcher = make_search(values[:370], kind="ivf-pq", newer=values[370:], nlist=2, pq_m=4, pq_bits=4)
    assert type(searcher.index).__name__ == "IndexIVFPQFastScan"
    assert searcher.index.by_residual  # codes of residuals are nearer to the vectors than codes of the vectors
    contexts, allowed = contexts_of(torch.randn(5, 3, 8)), (torch.rand(400) < 0.5).numpy()
    for query in ({"allowed": allowed}, {}):
        hits = searcher.search(contexts, top_k=20, list_length=370, effort=2, **query)
        assert set(hits.exactness) == {"approximate"}
        check_against_scan(hits, searcher, contexts, top_k=20, **query)
    hits = searcher.search(contexts, top_k=20, list_length=100, effort=2, allowed=allowed)
    assert allowed[hits.rows].all()
    best = search(contexts, searcher.vectors, k=20, allowed=allowed)
    assert (hits.scores >= best.scores[:, -1:]).mean() > 0.9


def test_a_context_without_codes_is_scanned(make_search):
    contexts = contexts_of(torch.randn(2, 2, 8), torch.tensor([[True, False], [False, False]]))
    hits = make_search(torch.randn(50, 8)).search(contexts, top_k=2, exactness="certified")
    assert hits.exactness == ["certified", "exact"]
    assert hits.rows[1].tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["hnsw", "ivf-flat"])
def test_where_lists_save_nothing_everything_is_scanned(make_search, kind, monkeypatch):
    """For very many results."""
    torch.manual_seed(0)
    searcher = make_search(torch.randn(90, 8), kind=kind, **SMALL[kind])
    contexts = contexts_of(torch.randn(2, 3, 8))
    assert set(searcher.search(contexts, top_k=5).exactness) == {"approximate"}
    assert set(searcher.search(contexts, top_k=5, list_length=6).exactness) <= {"approximate", "certified"}
    monkeypatch.setattr(approximate, "LONGEST_LIST", 4 * 64)
    assert set(searcher.search(contexts, top_k=64, exactness="approximate").exactness) != {"exact"}
    many = searcher.search(contexts, top_k=65, exactness="approximate")
    assert set(many.exactness) == {"exact"}
    check_against_scan(many, searcher, contexts, top_k=65)
    assert set(searcher.search(contexts, top_k=65, list_length=80).exactness) <= {"approximate", "certified"}


def test_an_empty_batch(make_search):
    hits = make_search(torch.randn(50, 8)).search(contexts_of(torch.empty(0, 2, 8)), top_k=2)
    assert hits.rows.shape == (0, 2)
    assert hits.exactness == []


def test_few_allowed_rows_are_scanned(make_search, monkeypatch):
    monkeypatch.setattr(approximate, "_SCAN_ROWS", 10)
    searcher = make_search(torch.randn(50, 8), kind="hnsw")
    allowed = np.arange(50) < 10
    assert searcher.search(contexts_of(torch.randn(1, 2, 8)), top_k=3, allowed=allowed).exactness == ["exact"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "annoy"}, "is 'annoy'; it must be auto or one of hnsw, ivf-flat, ivf-pq"),
        ({"kind": "hnsw", "nlist": 3}, "a hnsw index has no parameter 'nlist'"),
        ({"kind": "auto", "m": 16}, "auto chooses m too; name the kind, one of hnsw, ivf-flat, ivf-pq"),
        ({"kind": "hnsw", "m": 1}, "m must be a whole number from 2 to 2048, got 1"),
        ({"kind": "hnsw", "m": 2049}, "m must be a whole number from 2 to 2048, got 2049"),
        ({"kind": "ivf-flat", "nlist": 1 << 31}, "nlist must be a whole number from 1 to 2147483647"),
        ({"kind": "hnsw", "ef_search": 0}, "ef_search must be a whole number from 1 to"),
        ({"kind": "hnsw", "storage": "int4"}, "storage must be one of float32, float16; got 'int4'"),
        ({"kind": "ivf-flat", "nlist": 51}, "nlist is 51, which takes 51 rows to train, and there are 50"),
        ({"kind": "ivf-flat", "nlist": 9, "training_rows": 8}, "nlist is 9, .* there are 8"),
        ({"kind": "ivf-pq", "nlist": 1, "pq_bits": 6}, "pq_bits is 6, which takes 64 rows to train, and there are 50"),
        ({"kind": "ivf-pq", "pq_m": 3}, "pq_m must divide the vectors' dimension, 8; got 3"),
    ],
)
def test_bad_builds_are_refused(make_search, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_search(torch.randn(50, 8), **settings)


def test_a_build_is_a_file_of_its_own(make_search):
    searcher = make_search(torch.randn(50, 8), kind="hnsw")
    faiss = build_faiss(searcher.vectors)
    assert faiss.kind == "hnsw"  # so few
    assert {path.name for path in searcher.vectors.folder.glob("faiss*")} == {searcher.meta.file, faiss.file}


@pytest.mark.parametrize("n", [49, 60])
def test_an_index_of_other_vectors_is_refused(make_search, n):
    """A file of more or fewer than the description says."""
    searcher, other = make_search(torch.randn(50, 8)), make_search(torch.randn(n, 8))
    (searcher.vectors.folder / other.meta.file).write_bytes((other.vectors.folder / other.meta.file).read_bytes())
    with pytest.raises(CheckpointError, match="was made from other vectors"):
        FaissSearch(replace(other.meta, rows=50), searcher.vectors)


def test_only_files_of_this_installation_are_read(make_search, monkeypatch, tmp_path):
    """FAISS's reader trusts its input: it never sees a changed file, or another installation's."""
    searcher = make_search(torch.randn(50, 8))
    file = searcher.vectors.folder / searcher.meta.file
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("read"))
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"!" + content[101:])
    with pytest.raises(CheckpointError, match=f"{file.name}: .*trust") as error:
        FaissSearch(searcher.meta, searcher.vectors)
    assert str(error.value).count(file.name) == 1
    file.write_bytes(content)
    monkeypatch.setenv("POLYENCODER_KEY", str(tmp_path / "key"))
    with pytest.raises(CheckpointError, match=f"{file.name}.*trust"):
        FaissSearch(searcher.meta, searcher.vectors)


def test_a_key_is_made_before_the_work(make_search, monkeypatch):
    vectors = make_search(torch.randn(50, 8)).vectors
    monkeypatch.setenv("POLYENCODER_KEY", "/proc/key")
    monkeypatch.setattr(faiss, "index_factory", lambda *_: pytest.fail("built"))
    with pytest.raises(ConfigError, match="POLYENCODER_KEY"):
        build_faiss(vectors)


def test_damaged_files_are_refused(make_search):
    searcher = make_search(torch.randn(50, 8))
    file = searcher.vectors.folder / searcher.meta.file
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(CheckpointError, match=r"-flat.index cannot be read"):
        FaissSearch(replace(searcher.meta, signature=sign_file(file)), searcher.vectors)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"-flat.index cannot be read"):
        FaissSearch(searcher.meta, searcher.vectors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "annoy"}, "'annoy'"),
        ({"kind": "auto", "parameters": {}}, "auto"),
        ({"kind": "hnsw"}, "has no parameter|without"),
        ({"parameters": {}}, "a ivf-flat index without"),
        ({"parameters": {"storage": "int4"}}, "int4"),
        ({"tuned": {"recall": 0.9}}, "missing"),
    ],
)
def test_a_description_that_cannot_be(make_search, change, message):
    values = dataclasses.asdict(make_search(torch.randn(50, 8)).meta)
    assert from_json_values(FaissFile, values).rows == 50
    with pytest.raises((TypeError, ValueError, KeyError), match=message):
        from_json_values(FaissFile, values | change)
