from __future__ import annotations

import copy
import gc
import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import polyencoder.text.encoder as encoder
from polyencoder.config import TextConfig
from polyencoder.errors import ConfigError, InputError
from polyencoder.text.encoder import TextEncoder, read_tokenizer
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords

pytestmark = pytest.mark.slow

PAD, UNKNOWN, START, END = range(4)  # in the tiny tokenizer


@pytest.fixture
def words(text):
    """The ids of one text, from the tokenizer itself."""
    return lambda line: text.tokenizer.encode(line, add_special_tokens=False).ids


@pytest.mark.parametrize("memory", [0, 3_000, 30_000])
def test_forgetting_changes_no_ids(monkeypatch, tokenizer, text_config, sentences, memory):
    monkeypatch.setattr(encoder, "MEMORY", memory)
    text = TextEncoder(tokenizer, text_config)
    expected = [tokenizer.encode(sentence).ids for sentence in sentences]
    for _ in range(3):
        assert text.tokenize(sentences) == expected  # more texts at once than it remembers
        assert [text.tokenize([sentence])[0] for sentence in reversed(sentences)] == expected[::-1]
        assert text.tokenize([sentences[1]] * 5) == [expected[1]] * 5


@pytest.mark.long
def test_long_texts_take_no_more_memory_than_short_ones(tokenizer, text_config, monkeypatch):
    monkeypatch.setattr(encoder, "MEMORY", 1 << 18)
    text = TextEncoder(tokenizer, text_config)
    text.tokenize_context(["hello"])
    tracemalloc.start()
    try:
        for i in range(60):
            text.tokenize_context([f"{i} " + "a cat . " * (250 if i % 2 else 5_000)])
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1.2 * (1 << 18)
    finally:
        tracemalloc.stop()


def test_threads_may_share_an_encoder(tokenizer, text_config, monkeypatch):
    """Each finds its ids, while others have theirs forgotten."""
    monkeypatch.setattr(encoder, "MEMORY", 20_000)
    text = TextEncoder(tokenizer, text_config)
    texts = [f"text number {i}" for i in range(300)]
    expected = [ids.ids for ids in tokenizer.encode_batch(texts, add_special_tokens=False)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def ask(seed):
        draw = random.Random(seed)
        for _ in range(400):
            rows = draw.choices(range(len(texts)), k=5)
            assert text.tokenize([texts[i] for i in rows]) == [expected[i] for i in rows]

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    finally:
        sys.setswitchinterval(interval)


def test_a_copy_of_an_encoder(text, sentences):
    expected = text.tokenize(sentences)
    assert copy.deepcopy(text).tokenize(sentences) == expected


def test_a_text_is_tokenized_once(monkeypatch, text, sentences):
    sent = []
    tokenize = TextEncoder._encode
    monkeypatch.setattr(TextEncoder, "_encode", lambda self, texts: sent.extend(texts) or tokenize(self, texts))
    text.tokenize([*sentences, *sentences])
    text.tokenize(sentences)
    assert sent == sentences


@pytest.mark.parametrize("typed", ["[SEP]", "hi [SEP] there", "[CLS][PAD][SEP]", "a [PAD] b"])
def test_special_tokens_that_a_user_types_are_text(text, typed):
    assert not {PAD, START, END} & set(text.tokenize([typed])[0])
    assert text.tokenize_context([typed]).count(END) == 1
    assert text.tokenize_candidates([typed])[0].count(START) == 1


@pytest.mark.parametrize(("family", "typed"), [("bert", "[SEP] [CLS]"), ("roberta", "</s> <s> <pad>")])
def test_special_tokens_of_other_tokenizers_are_text_too(make_hf_tokenizer, family, typed):
    tokenizer = make_hf_tokenizer(family)
    special = {"start_token": tokenizer.cls_token, "end_token": tokenizer.sep_token, "pad_token": tokenizer.pad_token}
    text = TextEncoder(tokenizer.backend_tokenizer, TextConfig(separator=tokenizer.sep_token, **special))
    assert set(tokenizer.backend_tokenizer.encode(typed).ids) & {text.start_id, text.end_id}  # so there is a danger
    assert not {text.start_id, text.end_id, text.pad_id} & set(text.tokenize([typed])[0])


def test_the_callers_tokenizer_stays_as_it_was(tokenizer, text_config, sentences):
    theirs = Tokenizer.from_str(tokenizer.to_str())
    theirs.enable_truncation(3)
    theirs.enable_padding(length=7)
    text = TextEncoder(theirs, text_config)
    assert text.tokenize(sentences) == [tokenizer.encode(sentence).ids for sentence in sentences]
    assert len(theirs.encode(sentences[0]).ids) == 7


def test_a_context_is_its_turns_between_separators(text, words):
    expected = [START, *words("hi !"), END, *words("how are you ?"), END]
    assert text.tokenize_context(["hi !", "how are you ?"]) == expected


def test_lines_of_one_utterance_are_turns_and_one_text_is_one(text):
    assert text.tokenize_context(["hi !\nhow are you ?"]) == text.tokenize_context(["hi !", "how are you ?"])
    assert text.tokenize_context("hi !") == text.tokenize_context(["hi !"])


@pytest.mark.parametrize("turns", [[], [""], ["", " \n \t"], ""])
def test_an_empty_context_has_only_its_ends(text, turns):
    assert text.tokenize_context(turns) == [START, END]


@pytest.mark.parametrize("turns", [["", "hi !"], ["hi !", " "], ["\nhi !\n\n"]])
def test_empty_lines_leave_no_trace(text, turns):
    assert text.tokenize_context(turns) == text.tokenize_context(["hi !"])


@pytest.mark.parametrize(("history_size", "count"), [(1, 1), (2, 2), (4, 4), (9, 5), (-1, 5)])
def test_history_size_counts_utterances(tokenizer, history_size, count):
    text = TextEncoder(tokenizer, TextConfig(history_size=history_size))
    everything = TextEncoder(tokenizer, TextConfig(history_size=-1))
    lines = ["a", "b", "c", "d", "e"]
    for turns in (["a", "b\nc\n", "d", "e"], lines, "\n".join(lines)):
        assert text.tokenize_context(turns) == everything.tokenize_context(lines[-count:])


@pytest.mark.parametrize("truncation", ["turns", "tokens"])
def test_history_size_of_models_that_parlai_trained_counts_turns(tokenizer, words, truncation):
    """However many lines they have, persona or not."""
    text = TextEncoder(tokenizer, TextConfig(history_size=1, truncation=truncation))
    turns = ["your persona: a", "b c", "d\ne"]
    lines = ["your persona: a", "e"] if truncation == "turns" else ["d\ne"]
    assert text.tokenize_context(turns) == [START, *(i for turn in lines for i in (*words(turn), END))]


def test_lengths_include_start_and_end(tokenizer, sentences):
    text = TextEncoder(tokenizer, TextConfig(text_truncate=7, label_truncate=5))
    long = " ".join(sentences)
    ids = text.tokenize([long])[0]
    assert text.tokenize_context([long]) == [START, *ids[-5:], END]
    assert text.tokenize_candidates([long]) == [[START, *ids[:3], END]]


def test_a_separator_may_be_text(tokenizer, words):
    text = TextEncoder(tokenizer, TextConfig(separator=" || "))
    assert len(words(" || ")) > 1
    assert text.tokenize_context(["a", "b"]) == [START, *words("a"), *words(" || "), *words("b"), END]


def test_batches_hold_what_the_single_ones_do(text, sentences):
    contexts = [sentences[:1], sentences[:3], sentences[0]]
    assert text.batch_contexts(contexts).list_sequences() == [text.tokenize_context(turns) for turns in contexts]
    assert text.batch_candidates(sentences).list_sequences() == text.tokenize_candidates(sentences)
    assert text.batch_candidates(sentences).ids[~text.batch_candidates(sentences).mask].eq(PAD).all()


def test_empty_batches_are_refused(text):
    with pytest.raises(InputError, match="list of contexts is empty"):
        text.batch_contexts([])
    with pytest.raises(InputError, match="list of candidates is empty"):
        text.batch_candidates([])


@pytest.mark.parametrize("field", ["pad_token", "start_token", "end_token"])
def test_a_special_token_that_is_not_there(tokenizer, text_config, field):
    with pytest.raises(ConfigError, match=f"no '<nope>', which is this model's {field.replace('_', ' ')}"):
        TextEncoder(tokenizer, replace(text_config, **{field: "<nope>"}))


def test_the_fingerprint_tells_tokenizers_and_settings_apart(tokenizer, text_config):
    text = TextEncoder(tokenizer, text_config)
    extended = Tokenizer.from_str(tokenizer.to_str())
    extended.add_tokens(["teaching"])
    settings = [replace(text_config, text_truncate=41), replace(text_config, separator="|")]
    others = [TextEncoder(extended, text_config), *(TextEncoder(tokenizer, setting) for setting in settings)]
    assert len({text.compute_fingerprint(), *(other.compute_fingerprint() for other in others)}) == 4


def test_the_fingerprint_survives_use_and_the_disk(tmp_path, text, text_config, sentences):
    before = text.compute_fingerprint()
    text.batch_contexts([sentences])
    (tmp_path / "tokenizer.json").write_text(text.tokenizer.to_str(pretty=True), encoding="utf-8")
    again = TextEncoder(read_tokenizer(tmp_path / "tokenizer.json"), text_config)
    assert text.compute_fingerprint() == again.compute_fingerprint() == before


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("[CLS] $A [SEP] $B:1 [SEP]:1", False),
        ("[CLS] $A [SEP] $B [SEP]", "same_segment"),
        ("[CLS] $A [SEP] [SEP] $B [SEP]", "end"),
        ("[CLS] $A [SEP] [CLS] $B [SEP]", True),
    ],
)
def test_the_start_of_the_second_text_in_the_tokenizers_pairs(tokenizer, text_config, pair, expected):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair=pair, special_tokens=special)
    tokenizer.enable_truncation(2)
    assert TextEncoder(tokenizer, text_config).pair_start == expected


def test_pairs_of_another_form(text):
    with pytest.raises(ConfigError, match="its tokenizer joins two texts as Ġa Ġ b, which rankers do not"):
        _ = text.pair_start


@pytest.mark.parametrize("content", ["", "{", '{"version": "1.0"}', None])
def test_a_tokenizer_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="tokenizer.json: not a readable tokenizer.json"):
        read_tokenizer(path)


@pytest.fixture
def recent_first(sentences):
    """(**TextConfig's fields) -> an encoder of ConveRT's subwords, as its contexts are laid out."""
    tokenizer = learn_subwords(count_words(sentences), SubwordSettings(min_count=2, buckets=5))
    names = {"pad_token": "[PAD]", "start_token": "[PAD]", "end_token": "[PAD]", "separator": "[EXTRA]"}

    def make(**fields) -> TextEncoder:
        defaults = {"text_truncate": 12, "label_truncate": 9, "truncation": "recent_first", "surround": False}
        return TextEncoder(tokenizer, TextConfig(**(names | defaults | fields)))

    return make


def test_recent_first_keeps_the_beginnings_of_two_texts(recent_first, sentences):
    text = recent_first(history_size=11)
    separator = text.tokenizer.token_to_id("[EXTRA]")
    context = text.tokenize_context(sentences[:3])
    last, extra = text.tokenizer.encode_texts([sentences[2], f"{sentences[1]} {sentences[0]}"])
    assert context == [*last[:12], separator, *extra[:12]]
    assert len(last) > 4
    assert len(extra) > 12
    assert len(text.tokenize_context(sentences)) == text.config.longest_context == 25
    assert recent_first(history_size=1).tokenize_context(sentences[:3]) == last[:12]
    assert (
        text.tokenize_context(sentences[:1]) == text.tokenizer.encode_texts(sentences[:1])[0][:12]
    )  # without a history
    assert text.tokenize_candidates(sentences) == [ids[:9] for ids in text.tokenizer.encode_texts(sentences)]


@pytest.mark.parametrize("size", [1, 11])
def test_recent_first_reads_the_whole_last_turn(recent_first, size):
    text = recent_first(history_size=size, text_truncate=60)
    ids = text.tokenizer.encode_texts(["hello ,\n\nhow are you ?"])[0]
    assert (
        text.tokenize_context("hello ,\n\nhow are you ?") == text.tokenize_context(["hello ,\n\nhow are you ?"]) == ids
    )
    separator = text.tokenizer.token_to_id("[EXTRA]")
    earlier = text.tokenizer.encode_texts(["i am\nfine . your persona: i ski . your persona: cat"])[0]
    turns = ["your persona: i ski .\ni am\nfine .", "your persona: cat\nhello ,\n\nhow are you ?", " "]
    assert text.tokenize_context(turns) == (ids if size == 1 else [*ids, separator, *earlier])


def test_recent_first_numbers_turns_where_it_is_told_to(recent_first):
    text = recent_first(history_size=11, number_turns=True, text_truncate=60)
    separator = text.tokenizer.token_to_id("[EXTRA]")
    ids = text.tokenize_context(["your persona: cat", "one", "two", "three"])
    expected = text.tokenizer.encode_texts(["0: two 1: one your persona: cat"])[0]
    assert ids[ids.index(separator) + 1 :] == expected


def test_half_characters_and_other_things_than_texts_are_errors_of_subwords_too(recent_first):
    text = recent_first()
    for bad in ("a\ud83d", 3, None):
        with pytest.raises(InputError, match="text 1"):
            text.tokenize(["fine", bad])


def test_a_tokenizer_file_says_which_kind_it_is(recent_first, tokenizer, tmp_path, sentences):
    for original in (recent_first().tokenizer, tokenizer):
        path = tmp_path / "tokenizer.json"
        path.write_text(original.to_str(pretty=True), encoding="utf-8")
        again = read_tokenizer(path)
        assert type(again) is type(original)
        assert again.to_str() == original.to_str()


def test_a_layout_that_cannot_be():
    with pytest.raises(ConfigError, match="surround"):
        TextConfig(truncation="recent_first")


def test_the_share_of_unknown_tokens(tokenizer, text_config, make_hf_tokenizer):
    words = make_hf_tokenizer("bert")
    special = {"start_token": words.cls_token, "end_token": words.sep_token, "pad_token": words.pad_token}
    text = TextEncoder(words.backend_tokenizer, TextConfig(separator=words.sep_token, **special))
    assert text.compute_unknown_share(["hello dogs", "zweiundvierzig Hunde"]) == 0.5
    assert text.compute_unknown_share([]) == 0
    assert TextEncoder(tokenizer, text_config).compute_unknown_share(["zweiundvierzig Hunde"]) == 0  # byte-level


def test_the_share_of_unknown_tokens_of_unigrams(text_config):
    specials = [text_config.start_token, text_config.end_token, text_config.pad_token]
    pieces = [(piece, -1.0) for piece in (*specials, "\u2581hello", "\u2581dogs")]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    assert TextEncoder(tokenizer, text_config).compute_unknown_share(["hello dogs", "\u0416 \u0429"]) == 0.5


def test_the_share_of_unknown_tokens_of_hashed_characters(recent_first):
    assert recent_first().compute_unknown_share(["hello \u0416"]) == 0
