"""A name of another library is answered with what it is called here."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import polyencoder
from polyencoder import Ranker, guesses
from polyencoder.config import RankerConfig
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.options import SearchOptions

METHODS = [method for name, method in inspect.getmembers(Ranker, inspect.isroutine) if not name.startswith("_")]
FIELDS = {
    field.name for options in (SearchOptions, IndexOptions, RankerConfig) for field in dataclasses.fields(options)
}


@pytest.mark.parametrize("name", guesses.NAMES)
def test_the_package_says_what_to_use(name):
    error = ImportError if name[0].isupper() else AttributeError
    with pytest.raises(error, match=f"{name}: .*[Rr]anker"):
        getattr(polyencoder, name)


def test_an_import_of_a_class_says_what_to_use():
    with pytest.raises(ImportError, match=r"no SentenceTransformer: Ranker\.load"):
        from polyencoder import SentenceTransformer  # noqa: F401


def test_no_guess_is_a_name_here():
    assert not guesses.ATTRIBUTES.keys() & {*dir(Ranker)}
    assert not guesses.NAMES.keys() & {*dir(polyencoder)}
    assert not (guesses.PARAMETERS.keys() | guesses.REMOVED.keys()) & FIELDS


def test_each_guess_means_a_parameter_here():
    known = FIELDS.union(*(inspect.signature(method).parameters for method in METHODS))
    for name, parameters in guesses.PARAMETERS.items():
        assert isinstance(parameters, str) or {*parameters} & known, name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ranker: ranker.rank(query="a", documents=["b"]), r"Ranker\.rank\(\) .*'query'; it is context here"),
        (lambda ranker: ranker.rank("a", documents=["b"]), r"rank\(\) .*'documents'; it is candidates here"),
        (lambda ranker: ranker.rank("a", ["b"], top_n=1), r"'top_n'; it is top_k here"),
        (lambda ranker: ranker.rank("a", ["b"], topk=1), r"'topk'; did you mean top_k\?"),
        (lambda ranker: ranker.score(queries=["a"]), r"Ranker\.score\(\) .*'queries'; it is contexts here"),
        (lambda ranker: ranker.score(["a"]), r"Ranker\.score\(\): missing a required argument: 'candidates'"),
        (lambda ranker: ranker.encode(["a"], normalize_embeddings=True), "it is normalize here"),
        (lambda ranker: ranker.encode_query("a", show_progress_bar=True), "it is progress here"),
        (lambda ranker: ranker.encode(["a"], convert_to_tensor=True), "'convert_to_tensor'; vectors are arrays"),
        (lambda ranker: ranker.search("a", "index", top_n=1), "'top_n'; it is top_k here"),
        (lambda ranker: ranker.search(query="a", index="index"), r"Ranker\.search\(\) .*'query'; it is context here"),
        (lambda ranker: ranker.index(["a"], path="index"), "'path'; it is where here"),
        (lambda ranker: ranker.index(["a"], fais="hnsw"), r"'fais'; did you mean faiss\?"),
        (lambda ranker: type(ranker).load("m", trust_remote_code=True), "'trust_remote_code'; code .* is never run"),
        (lambda ranker: type(ranker).load("m", torch_dtype="float16"), "'torch_dtype'; it is dtype here"),
        (lambda ranker: type(ranker).load("m", max_length=9), r"'max_length'; Ranker\.from_backbone\(name, .*truncate"),
    ],
)
def test_a_wrong_parameter_is_answered_with_its_name_here(make_ranker, call, message):
    with pytest.raises(TypeError, match=message):
        call(make_ranker("bi"))


def test_a_class_below_is_named(make_ranker):
    class Mine(Ranker):
        pass

    with pytest.raises(TypeError, match=r"^Mine\.from_pretrained\(\) .*'model_name_or_path'; it is name here"):
        Mine.from_pretrained(model_name_or_path="m")


def test_the_signature_stays():
    assert [*inspect.signature(Ranker.rank).parameters][:3] == ["self", "context", "candidates"]
