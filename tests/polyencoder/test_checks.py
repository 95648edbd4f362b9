"""What callers give in Python: an error that names the argument, whatever is in it; and arrays are lists."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pandas
import pytest
from safetensors.torch import load_file, save_file

from polyencoder.checks import (
    DEEPEST,
    check_candidate,
    check_count,
    check_device,
    check_place,
    check_text,
    check_texts,
    explain_unencodable,
    find_json_problem,
    find_lone_surrogate,
    hide_password,
)
from polyencoder.config import RankerConfig, TextConfig
from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.ranker import Ranker
from polyencoder.storage.files import atomic_write, check_writable

TEXTS = ["hello there", "i have two dogs", "do you ski ?"]
HALF = "bad \ud83d"


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("cross")


@pytest.mark.parametrize("architecture", ["poly", "cross"])
@pytest.mark.parametrize("kind", [tuple, np.array, lambda texts: np.array(texts, dtype=object), dict.fromkeys])
def test_candidates_of_any_sequence(kind, make_ranker, architecture):
    candidates, ranker = kind(TEXTS), make_ranker(architecture)
    if isinstance(candidates, dict):
        candidates = candidates.keys()
    ranked = ranker.rank("hi", candidates)
    assert ranked == ranker.rank("hi", TEXTS)
    assert all(type(hit.text) is str for hit in ranked)
    np.testing.assert_allclose(
        ranker.score(np.array(["hi", "you"]), candidates), ranker.score(["hi", "you"], TEXTS), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "candidates",
    [
        *("text", b"text", None, 3, {"a": 1}, {"a"}, range, np.array("x")),
        *([1], [None], ["a", 2.0], [["a"]], [b"a"], [HALF], []),
    ],
    ids=str,
)
def test_what_are_no_candidates(candidates, ranker):
    for ask in (ranker.rank, lambda context, texts: ranker.score([context], texts)):
        with pytest.raises(InputError, match="^(candidate|no candidate)") as error:
            ask("hi", candidates)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "context", [None, 3, b"hi", [1], [None], [["hi"]], {"hi": 1}, HALF, ["hi", HALF], "", [], ["", " "]], ids=repr
)
def test_what_is_no_context(context, ranker):
    with pytest.raises(InputError, match="^context 0") as error:
        ranker.rank(context, TEXTS)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("contexts", ["hi", None, 3, b"hi", {"hi"}])
def test_what_are_no_contexts(contexts, ranker):
    with pytest.raises(InputError, match="^contexts is"):
        ranker.score(contexts, TEXTS)


def test_half_a_character_says_where():
    assert explain_unencodable("fine \U0001f600") is None
    assert explain_unencodable(HALF).startswith(
        r"character 5 of 'bad \ud83d' is half of one (a lone surrogate, '\ud83d')"
    )
    assert find_lone_surrogate({"a": ["b", {HALF: 1}]}) == find_lone_surrogate([HALF]) == explain_unencodable(HALF)
    assert find_lone_surrogate({"a": ["b", 1, None, "é"]}) is None


def test_half_a_character_never_reaches_a_tokenizer(text):
    for call in (text.tokenize, text.tokenize_candidates, text.tokenize_context):
        with pytest.raises(InputError, match="text 1: character 5 of"):
            call(["fine", HALF])
    with pytest.raises(InputError, match=r"text 0 is 3 \(int\); it must be a text"):
        text.tokenize([3])


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, float("nan")])
def test_what_is_no_count(value):
    with pytest.raises(InputError, match="^top_k is .*; it must be at least 1"):
        check_count("top_k", value)


def test_what_numpy_holds():
    assert check_count("n", np.int64(3)) == 3
    assert check_texts("texts", np.array(["a"])) == ["a"]
    assert type(check_text("text", np.str_("a"))) is str


@pytest.mark.parametrize("name", ["nonsense", "meta", "cpu:x", 3.5, "cuda:9999"])
def test_devices(name, make_model, text):
    with pytest.raises(ConfigError, match="^device "):
        check_device(name)
    with pytest.raises(ConfigError, match="^device "):
        Ranker(make_model("bi"), text, device=name)


@pytest.mark.parametrize("name", [None, 3, b"x", ["x"]])
def test_names_of_models(name):
    with pytest.raises(ConfigError, match="^a model's name must be"):
        Ranker.from_pretrained(name)


@pytest.mark.parametrize("name", ["", " ", None, 3, "n" * 300, "a/" + "n" * 300, "a\0b", "\ud83d", "x/" * 3000])
def test_places(name):
    with pytest.raises(ConfigError, match="^the index "):
        check_place("the index", name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("n_codes", value) for value in ("4", 4.0, True, None, 0)),
        *(("output_scaling", value) for value in (float("nan"), float("inf"), 0.0, "1")),
        *[("share_encoders", 1), ("normalize", None), ("reduction", None), ("reduction", ["first"])],
        *[("text", {}), ("backbone", []), ("backbone", {"model_type": 3})],
    ],
)
def test_fields_of_a_configuration(field, value, make_config):
    config = make_config("poly")
    with pytest.raises(ConfigError):
        dataclasses.replace(config, **{field: value})


@pytest.mark.parametrize(
    "values",
    [{"text_truncate": "40"}, {"history_size": 1.5}, {"pad_token": None}, {"truncation": 1}, {"surround": "x"}],
)
def test_fields_of_a_text_configuration(values):
    with pytest.raises(ConfigError):
        TextConfig(**values)


def test_a_configuration_of_any_size_takes_no_memory(make_ranker, edit_json, tmp_path):
    """The shapes are compared with the weights before there is a model."""
    make_ranker("bi").save_pretrained(tmp_path)
    backbone = RankerConfig.from_json((tmp_path / "polyencoder.json").read_text(), origin="here").backbone
    edit_json(tmp_path / "polyencoder.json", backbone=backbone | {"hidden_size": 1 << 24, "vocab_size": 1 << 24})
    weights = tmp_path / "polyencoder.safetensors"
    save_file(load_file(weights), weights)  # without the digest of the configuration, which would name it first
    with pytest.raises(PolyencoderError, match="the weights do not fit the model"):
        Ranker.from_pretrained(tmp_path)


def test_no_file_takes_the_place_of_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="something else than a plain file"), atomic_write(tmp_path / "pipe"):
        pytest.fail("nothing is to be written")
    assert (tmp_path / "pipe").is_fifo()
    for name in ("pipe", ".", "", "x/" + "n" * 300):
        with pytest.raises(ConfigError) as error:
            check_writable(tmp_path / name if name else "", argument="out", overwrite=True)
        assert error.value.argument == "out"
    assert os.listdir(tmp_path) == ["pipe"]


def test_json_from_outside_has_its_problems_named_by_their_place():
    deep: list = []
    for _ in range(DEEPEST - 1):
        deep = [deep]
    assert find_json_problem({"a": ["b", {"c": "é"}], "d": deep}) is not None
    assert find_json_problem(deep) is None
    assert find_json_problem([deep]) == ("0.0.0", "is nested more than 100 levels deep: keep fewer")
    assert find_json_problem({"a": ["b", {"c": "\ud83d"}]})[0] == "a.1.c"
    assert find_json_problem({"a": {"\ud83d": 1}})[0] == "a"
    assert find_json_problem([1.5, {"a": float("-inf")}])[0] == "1.a"
    assert find_lone_surrogate([float("nan")]) is None
    assert find_lone_surrogate(["fine", {"\ud83d": 1}]).startswith("character 1 of")


def test_an_empty_candidate_is_named():
    for text in (" \n", "\0", "\u200b\ufeff", "\x1b \u00ad"):
        with pytest.raises(InputError, match="candidate 3 is empty"):
            check_candidate("candidate 3", text)
    assert check_candidate("candidate 3", "\u200fא") == "\u200fא"
    assert check_candidate("candidate 3", "a") == "a"


def test_what_looks_like_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("postgres://host/db", "foo:bar//", "milvus:x", "s3:x"):
        with pytest.raises(ConfigError, match="out '.*' looks like an address, and .*: is not a known one"):
            check_place("out", name)
    with pytest.raises(ConfigError, match="a folder or a file, or milvus: and an address; one .* ./foo:bar"):
        check_place("out", "foo:bar", addresses=("milvus",))
    check_place("out", "milvus:x", addresses=("milvus",))
    for name in ("./foo:bar", "a/foo:bar", "C:/there", "12:30", ":"):
        check_place("out", name)
    (tmp_path / "run:1").mkdir()
    check_place("out", "run:1")  # which is there


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgres://u:secret@h:5/d?sslkey=secret#t", "postgres://u@h:5/d#t"),
        ("postgres://u:sec/ret@h/d", "postgres://u@h/d"),
        ("postgres://h:5/d?password=secret@secret#t", "postgres://h/...#t"),
        ("postgres://u:a/secret?secret@h/d", "postgres://u/..."),
        ("folder", "folder"),
    ],
)
def test_addresses_are_shown_without_what_may_be_a_password(address, expected):
    assert hide_password(address) == expected


def test_a_table_is_no_list_of_texts():
    """Else the names of its columns would be ranked."""
    table = pandas.DataFrame({"text": ["a", "b"], "id": ["1", "2"]})
    with pytest.raises(InputError, match="candidates is .* must be a list of texts"):
        check_texts("candidates", table)
    assert check_texts("candidates", table["text"]) == ["a", "b"]


def test_a_number_may_have_a_limit():
    assert check_count("n", 7, max_value=7) == 7
    with pytest.raises(InputError, match="n is too large; it must be at most 7") as error:
        check_count("n", 10**5000, max_value=7)
    assert error.value.argument == "n"
