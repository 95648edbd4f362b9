"""Vocabularies of merged characters: what a size means, that each merge is the best one, that equal texts agree."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from polyencoder.errors import ConfigError
from polyencoder.importing.folder import save_tokenizer
from polyencoder.modeling.loading import load_tokenizer
from polyencoder.text.learning import ROLES, PieceSettings, count_characters, learn_pieces

SPECIAL = ["[PAD]", "[UNK]", "[S]", "[MASK]", "[NEWLINE]"]
TYPES = ["bpe", "wordpiece"]
EXTRA_TEXTS = [
    "The THE the theatre , isn't it ?",
    "snow snow snowing , 3 € for a \N{SNOWMAN}",
    "caf\N{COMBINING ACUTE ACCENT}",
]


@pytest.fixture
def texts(sentences):
    return [*sentences, *EXTRA_TEXTS]


def learn(texts, **options):
    settings = PieceSettings(**options)
    return learn_pieces(iter(texts), count_characters(iter(texts), settings), settings)


def words(texts) -> Counter[str]:
    return Counter(word for text in texts for word in regex.findall(r"\w+|[^\w\s]", text.lower()))


def test_each_merge_is_of_a_most_frequent_pair(texts):
    """Replayed in plain Python, from words cut into characters."""
    tokenizer = learn(texts, size=200, merges=25)
    merged = [token for token in tokenizer.get_vocab() if len(token.removesuffix("</w>")) > 1]
    state = {word: [*word[:-1], word[-1] + "</w>"] for word in words(texts)}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    assert len(merges) == 25
    for left, right in merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in state.items():
            for pair in pairwise(parts):
                pairs[pair] += words(texts)[word]
        assert pairs[left, right] == max(pairs.values())
        for parts in state.values():
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == (left, right):
                    parts[i : i + 2] = [left + right]
                i += 1
    assert {"".join(pair) for pair in merges} <= set(merged)


def test_what_is_frequent_becomes_a_piece(texts):
    frequent = {word for word, count in words(texts).items() if count > 1}
    assert frequent <= set(learn(texts, type="wordpiece").get_vocab())


@pytest.mark.parametrize("kind", TYPES)
def test_a_size_is_special_tokens_characters_and_merges(texts, kind):
    tokenizer = learn(texts, type=kind, size=70, merges=30)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    assert len(tokens) == 70
    assert tokens[:5] == SPECIAL
    plain = [token.removesuffix("</w>").removeprefix("##") for token in tokens[5:]]
    single = [token for token in plain if len(token) == 1]
    assert plain[: len(single)] == single  # characters, the most frequent first, then what merges make
    assert len(single) >= 70 - 5 - 30
    counts = count_characters(texts, PieceSettings(type=kind)).counts
    had = [counts[token] for token in tokens[5 : 5 + len(single)]]
    assert had == sorted(had, reverse=True)
    assert min(had) >= max(count for form, count in counts.items() if form not in tokens)


@pytest.mark.parametrize("kind", TYPES)
def test_all_characters_fit_into_a_large_size_and_none_is_unknown(texts, kind):
    settings = PieceSettings(type=kind)
    characters = count_characters(texts, settings)
    tokenizer = learn_pieces(texts, characters, settings)
    assert characters.texts == len(texts)
    assert characters.counts.total() == sum(len(word) for text in texts for word in "".join(text.split()).split())
    assert characters.compute_unknown_share(tokenizer) == 0
    assert set(characters.counts) <= set(tokenizer.get_vocab())
    assert "[UNK]" not in tokenizer.encode(" ".join(EXTRA_TEXTS)).tokens


@pytest.mark.parametrize("kind", TYPES)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cn"]), max_size=30))
@example(text="[PAD]")
def test_characters_are_counted_where_the_tokenizer_sees_them(kind, text):
    """The counts are made with another library's patterns than the words; what Unicode lacks one may know already."""
    settings = PieceSettings(type=kind, merges=0)
    characters = count_characters([text], settings)
    if not characters.counts:
        return
    tokenizer = learn_pieces([text], characters, settings)
    tokenizer.encode_special_tokens = True  # a text that says [PAD] is text, as in `TextEncoder`
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert Counter(encoded.tokens) == characters.counts


def test_rare_characters_are_unknown(texts):
    texts = texts * 3 + ["a \N{SNOWMAN WITHOUT SNOW}"]
    settings = PieceSettings(size=60, merges=20)
    characters = count_characters(texts, settings)
    tokenizer = learn_pieces(texts, characters, settings)
    assert tokenizer.encode("a \N{SNOWMAN WITHOUT SNOW}", add_special_tokens=False).tokens[-1] == "[UNK]"
    ids = [tokenizer.encode(text, add_special_tokens=False).tokens for text in texts]
    unknown = sum(tokens.count("[UNK]") for tokens in ids)
    assert characters.compute_unknown_share(tokenizer) == pytest.approx(unknown / characters.counts.total())


@pytest.mark.parametrize("kind", TYPES)
def test_equal_texts_give_equal_vocabularies(texts, kind):
    vocabularies = {learn(texts, type=kind, size=120, merges=60).to_str() for _ in range(8)}
    assert len(vocabularies) == 1


def test_case(texts):
    assert learn(texts).encode("THE").ids == learn(texts).encode("the").ids
    cased = learn(texts, lower_case=False)
    assert cased.encode("THE").ids != cased.encode("the").ids


@pytest.mark.parametrize("kind", TYPES)
def test_transformers_opens_its_folder(texts, kind, tmp_path):
    tokenizer = learn(texts, type=kind, size=200)
    save_tokenizer(tmp_path, tokenizer, special_tokens=ROLES)
    opened, special = load_tokenizer(tmp_path)
    assert special == {"start_token": "[S]", "end_token": "[S]", "separator": "[S]", "pad_token": "[PAD]"}
    pair = opened.encode("hello , you", "the snow")
    assert pair.ids == tokenizer.encode("hello , you", "the snow").ids
    positions = [i for i, token in enumerate(pair.tokens) if token == "[S]"]
    assert positions == [0, pair.type_ids.index(1) - 1, len(pair) - 1]
    assert tokenizer.decode(pair.ids).replace(" ", "") == "hello,youthesnow"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "other"}, "type is 'other'"),
        ({"size": 5}, "size is 5"),
        ({"size": 100, "merges": 95}, "size is 100; with 95 merges"),
        ({"merges": -1}, "merges is -1"),
    ],
)
def test_what_cannot_be_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        PieceSettings(**options)


def test_texts_without_a_character_are_an_error():
    with pytest.raises(ConfigError, match="the texts are empty"):
        learn([" ", ""])


def test_the_published_vocabulary_is_made_so(data_path):
    """Humeau et al.'s 54,940 terms: 30,000 longer ones less the padding of fp16, and single characters at a place."""
    tokens = json.loads((data_path / "bpe_54940" / "vocab.json").read_text(encoding="utf-8"))
    terms = [token for token in tokens if not token.startswith("__fp16_pad")]
    single = [term for term in terms if len(term.removesuffix("@@")) == 1]
    assert (len(terms), len(single)) == (54_940, 24_944)
    merges = (data_path / "bpe_54940" / "merges.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
    assert len(merges) - 1 == 30_000
