"""fairseq's `dict.txt`: ids, fillers, and symbols of another encoding."""

from __future__ import annotations

import pytest

from polyencoder.errors import CheckpointError
from polyencoder.importing.fairseq_dictionary import FairseqDictionary


@pytest.fixture
def read(tmp_path):
    """(lines, n_tokens=None) -> the dictionary of a model of n_tokens, by default those of the lines with a mask."""

    def make(*lines: str, n_tokens: int | None = None) -> FairseqDictionary:
        path = tmp_path / "dict.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return FairseqDictionary.read(path, n_tokens=n_tokens or len(lines) + 5, origin="model.pt")

    return make


def test_ids_are_lines_behind_the_special_tokens(read):
    dictionary = read("the 7", "\u2028 5", "madeupword0000 0", "a@@ 3")
    assert list(dictionary.ids) == ["<s>", "<pad>", "</s>", "<unk>", "the", "\u2028", "madeupword0000", "a@@", "<mask>"]
    assert list(dictionary.ids.values()) == list(range(9))
    assert dictionary.symbols == ["the", "\u2028", "a@@"]
    assert dictionary.special == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def test_a_mask_of_its_own_and_none(read):
    assert read("a 1", "<mask> 1", "b 1", n_tokens=7).ids["<mask>"] == 5
    assert read("a 1", n_tokens=5).special == ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.mark.parametrize(
    ("lines", "n_tokens", "message"),
    [
        (["1 7", "2"], 7, "dict.txt, line 2: '2' is not a new `symbol count`"),
        (["1 7", "1 7"], 7, "dict.txt, line 2: '1 7' is not a new `symbol count`"),
        (["<s> 7"], 6, "dict.txt, line 1: '<s> 7' is not a new `symbol count`"),
        (["a 7 #fairseq:overwrite"], 6, "line 1: 'a 7 #fairseq:overwrite' is not a new"),
        (["a 7"], 7, "dict.txt: gives 5 tokens with the special ones, but model.pt embeds 7"),
        (["a 7", "<mask> 1"], 7, "dict.txt: gives 6 tokens with the special ones, but model.pt embeds 7"),
    ],
)
def test_what_is_no_dictionary_of_the_model(read, lines, n_tokens, message):
    with pytest.raises(CheckpointError, match=message):
        read(*lines, n_tokens=n_tokens)


class TestCheck:
    WORDS = tuple(f"word{n} 1" for n in range(99))

    def test_one_symbol_in_a_hundred_may_be_added_by_hand(self, read):
        known = {f"word{n}" for n in range(99)}
        read(*self.WORDS, "[name] 1").check(known.__contains__, marked=lambda _: False, source="codes")
        with pytest.raises(
            CheckpointError, match=r"dict.txt: 2 of its 101 symbols, such as '\[name\]', are not of codes"
        ):
            read(*self.WORDS, "[name] 1", "[date] 1").check(known.__contains__, marked=lambda _: False, source="codes")

    def test_but_no_symbol_with_the_mark_of_a_piece(self, read):
        known = {f"word{n}" for n in range(99)}
        with pytest.raises(CheckpointError, match="1 of its 100 symbols, such as 'x@@', are not of codes"):
            read(*self.WORDS, "x@@ 1").check(known.__contains__, marked=lambda s: s.endswith("@@"), source="codes")
