"""The description of an index: written and read back, and compared with the model that opens it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index.faiss.file import FaissFile
from polyencoder.index.meta import Fingerprints, IndexMeta, Maker, get_separable_model
from polyencoder.text import TextEncoder

OURS = Fingerprints("m1", "t1")
HNSW = {"m": 32, "ef_construction": 40, "ef_search": 16, "storage": "float32"}
FAISS = FaissFile(file="a.faiss", kind="hnsw", rows=5, max_norm=1.5, parameters=HNSW, signature="e1")


def described(**fields) -> IndexMeta:
    fields = {"dtype": "float16", "shard_size": 100, "build": "0" * 16, "dim": 8} | fields
    return IndexMeta.from_ranker(fields.pop("fingerprints", OURS), model_name="models/näme", **fields)


@given(st.integers(0, 9), st.integers(0, 9), st.none() | st.text(), st.none() | st.just(FAISS))
def test_a_description_is_read_as_it_was_written(rows, version, candidates, faiss):
    meta = described(rows=rows, version=version, candidates=candidates, faiss=faiss)
    assert IndexMeta.from_json(meta.to_json(), "index") == meta


def test_the_maker_is_the_ranker(make_ranker):
    ranker = make_ranker("poly")
    maker = Maker.from_ranker(ranker, model_name="")
    assert (maker.architecture, maker.dim) == ("poly", ranker.model.dim)
    assert maker.fingerprints == Fingerprints.of(ranker)
    assert maker.fingerprints != Fingerprints.of(make_ranker("poly", seed=1))
    assert Fingerprints.of(OURS) is OURS
    assert get_separable_model(ranker) is ranker.model
    with pytest.raises(InputError, match="has no vectors of candidates"):
        Maker.from_ranker(make_ranker("cross"), model_name="")


def test_vectors_that_exist_need_their_size():
    assert Maker.from_ranker(OURS, model_name="", dim=3).architecture == ""
    for dim in (None, 0):
        with pytest.raises(ConfigError, match="dim"):
            Maker.from_ranker(OURS, model_name="", dim=dim)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 6}, "format version 6, but this version of polyencoder reads 7"),
        ({"dim": 0}, r"damaged \(ConfigError: dim is 0"),
        ({"rows": -1}, "damaged .*rows"),
        ({"dtype": "float8"}, "damaged .*dtype"),
        ({"model_fingerprint": 3}, "damaged .*fingerprints is 3; it must be a text"),
        ({"faiss": {"file": "x"}}, "damaged "),
        ({"odd": 1}, "damaged .*unknown setting 'odd'"),
    ],
)
def test_a_description_that_no_index_has(change, message):
    values = json.loads(described().to_json()) | change
    with pytest.raises(CheckpointError, match=f"^my index, its description: {message}"):
        IndexMeta.from_json(json.dumps(values), "my index")


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", "[" * 100_000, json.dumps({"dim": 8})])
def test_text_that_is_no_description(text):
    with pytest.raises(
        CheckpointError,
        match=r"^my index, its description: damaged \(.*\); remove the index, and build it again",
    ):
        IndexMeta.from_json(text, "my index")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (("m1", "t1"), None),
        (("m1", ""), None),  # known by the name of its encoder alone
        (("m2", "t1"), "made by another model, models/näme .fingerprint m1.; .* another weights or reduction"),
        (("m2", ""), "another weights, reduction or tokenizer .fingerprint m2."),
        (("m2", "t2"), "another tokenizer"),
        (("m1", "t2"), "another tokenizer"),
        (("m1-int8", "t1"), "made by the float32 model, and its vectors have another precision"),
    ],
)
def test_an_index_belongs_to_one_model(model, says):
    meta = described()
    if says is None:
        meta.check_model(Fingerprints(*model), where="index")
        return
    with pytest.raises(CheckpointError, match=f"^index: .*{says}.* `polyencoder index`$"):
        meta.check_model(Fingerprints(*model), where="index")


def test_an_index_of_int8_graphs_is_not_that_of_their_model():
    meta = described(fingerprints=Fingerprints("m1-int8", "t1"))
    for other in (OURS, Fingerprints("m1-int8.2", "t1")):
        for maker in (meta, meta.fingerprints):  # as it is opened, and as an open one is searched
            with pytest.raises(CheckpointError, match="^index: made by int8 graphs"):
                maker.check_model(other, where="index")


@given(*[st.sampled_from(["", "a", "b"])] * 4)
def test_fitting_is_mutual(model, tokenizer, other_model, other_tokenizer):
    first, second = Fingerprints(model, tokenizer), Fingerprints(other_model, other_tokenizer)
    assert first.fits(first)
    assert first.fits(second) == second.fits(first)


def test_a_summary_says_what_is_known():
    assert described().summarize("i", entries=1234, vectors="flat") == [
        "i: 1,234 candidates",
        "model: models/näme (foreign encoder, fingerprint m1)",
        "vectors: flat",
    ]
    nameless = Maker(architecture="poly", dim=3, fingerprints=OURS, model_name="")
    assert nameless.summarize("i", entries=1, vectors="")[1] == "model: not known (poly-encoder, fingerprint m1)"


def test_contexts_may_change(make_ranker, tmp_path):
    ranker = make_ranker("poly")
    ranker.index(["hi", "hello"], tmp_path / "index").close()
    longer = replace(ranker.text.config, text_truncate=ranker.text.config.text_truncate + 9, history_size=1)
    other = Ranker(make_ranker("poly").model, TextEncoder(ranker.text.tokenizer, longer))
    assert len(other.search("hey", tmp_path / "index")) == 2
