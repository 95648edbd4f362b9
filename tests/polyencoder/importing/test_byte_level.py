"""Byte-level dictionaries in ParlAI's three notations: the ids of the tokenizer that they were made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer

from polyencoder.errors import CheckpointError
from polyencoder.importing.byte_level import BYTE_LEVEL, build_byte_level

pytestmark = pytest.mark.slow

SPECIAL = ["__null__", "__start__", "__end__", "__unk__"]
TEXTS = st.text(alphabet="abcehistTH 019.,'\"-_é漢😀", max_size=40)
LINES = [
    "the cat sat on the mat , and the other cats didn't sit .",
    "2019 was the hat's year",
    "naïve café 漢字 😀",
] * 9


def notation(token: str) -> str:
    """A token as ParlAI's `gpt2` and `slow_bytelevel_bpe` write it: each byte of a character beyond ASCII as \\xNN."""
    return "".join(c if ord(c) < 128 else "".join(f"\\x{byte:02x}" for byte in c.encode()) for c in token)


@pytest.fixture(scope="module")
def trained() -> ByteLevelBPETokenizer:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(LINES, vocab_size=330, min_frequency=1, show_progress=False)
    return tokenizer


@pytest.fixture(scope="module")
def ordered(trained) -> list[str]:
    """The tokens in the order of their ids: the 256 bytes, then what the merges make."""
    vocabulary = trained.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


@pytest.fixture(scope="module")
def dictionaries(trained, ordered, tmp_path_factory):
    """The three kinds of dictionary as tokenizers of ours, by kind."""
    file = tmp_path_factory.mktemp("dictionary") / "model.dict"
    trained.save_model(str(file.parent), "model.dict")
    tokens = {kind: [*SPECIAL, *map(notation, ordered)] for kind in ("gpt2", "slow_bytelevel_bpe")}
    tokens["bytelevelbpe"] = [*SPECIAL, *ordered]
    return {kind: build_byte_level(file, kind, each, SPECIAL, prefix_space=False) for kind, each in tokens.items()}


@pytest.mark.parametrize("kind", sorted(BYTE_LEVEL))
@given(text=TEXTS)
def test_the_ids_are_those_of_the_original_behind_the_special_tokens(kind, dictionaries, trained, text):
    tokenizer, empty = dictionaries[kind]
    expected = [i + len(SPECIAL) for i in trained.encode(text).ids]
    assert tokenizer.encode(text, add_special_tokens=False).ids == expected
    assert tokenizer.decode(expected) == text
    assert empty is None


def test_the_merges_of_gpt2_follow_from_the_order_of_its_tokens(ordered, tmp_path, dictionaries):
    """ParlAI keeps them elsewhere: no file beside the dictionary is read."""
    tokenizer, _ = build_byte_level(
        tmp_path / "none.dict", "gpt2", [*SPECIAL, *map(notation, ordered)], SPECIAL, prefix_space=False
    )
    assert tokenizer.to_str() == dictionaries["gpt2"][0].to_str()


def test_a_prefix_space_is_the_token_of_an_empty_text(ordered, tmp_path, trained):
    tokens = [*SPECIAL, *map(notation, ordered)]
    tokenizer, empty = build_byte_level(tmp_path / "x.dict", "gpt2", tokens, SPECIAL, prefix_space=True)
    ids = tokenizer.encode("the cat", add_special_tokens=False).ids
    assert ids == [i + len(SPECIAL) for i in trained.encode(" the cat").ids]
    assert empty == trained.id_to_token(trained.encode(" ").ids[0])


def test_a_dictionary_that_its_merges_do_not_fit(ordered, tmp_path, trained):
    trained.save_model(str(tmp_path), "x.dict")
    with pytest.raises(CheckpointError, match=r"x\.dict: has no token .*, which its merges need"):
        build_byte_level(tmp_path / "x.dict", "bytelevelbpe", [*SPECIAL, *ordered[:-1]], SPECIAL, prefix_space=None)
    with pytest.raises(CheckpointError, match="two of its tokens have the same name"):
        build_byte_level(
            tmp_path / "x.dict", "gpt2", [*SPECIAL, *map(notation, ordered), "a"], SPECIAL, prefix_space=None
        )
