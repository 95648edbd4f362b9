"""Our tokenizers against ParlAI's own dictionaries: the same ids for any text."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from subword_nmt.learn_bpe import learn_bpe
from tokenizers import ByteLevelBPETokenizer

from polyencoder.config import TextConfig
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.importing.parlai_dictionary import count_parlai_tokens, read_parlai_dictionary
from polyencoder.text import TextEncoder

pytest.importorskip("parlai", reason="compares with ParlAI, which is not installed")
from parlai.core.dict import DictionaryAgent
from parlai.core.opt import Opt

from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

UNKNOWN = 3
WORDS = "the cat sat on the mat and the other cats did not ; hahaha , naïve _words_ of 2² letters . οδος ΟΔΟΣ ὀδυσσεύς"
# where libraries differ on words and lower case: sigmas, marks, digits of all kinds, spaces that are none elsewhere
CHARACTERS = "aabcehst\u03a3\u03a3\u0391\u03c3\u03c2'\u2019."
CHARACTERS += "·_-\u0301\u0903\u200d\u00ad²½\u3007٣ⅷ漢İßǅ😀 \n\r\t\x1c\x85\xa0\u2028\u3000@<>/w\\"
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cn"])),  # no letters newer than this Python
    st.text(alphabet=CHARACTERS, max_size=30),
    st.lists(st.sampled_from([*WORDS.split(), *CHARACTERS, "__newln__", "__start__", "at@@", "t</w>", "hah"])).map(
        "".join
    ),
)


BYTE_LEVEL = ("gpt2", "slow_bytelevel_bpe", "bytelevelbpe")


class Both:
    """A dictionary as ParlAI reads it and as we do."""

    def __init__(self, path, **options):
        self.opt = Opt({"dict_file": str(path), "datapath": str(path.parent), **options})
        self.path = path
        self.theirs = DictionaryAgent(Opt(self.opt))
        if not path.exists():
            self.theirs.save(str(path), sort=False)
            self.theirs = DictionaryAgent(Opt(self.opt))
        self.tokenizer, self.fields = read_parlai_dictionary(path, self.opt)
        self.encoder = TextEncoder(self.tokenizer, TextConfig(text_truncate=1000, **self.fields))

    def known(self, ids):
        """Ids with the unknown token at pieces that ParlAI's dictionary has not."""
        return [i if i < len(self.theirs) else UNKNOWN for i in ids]

    def ours(self, text):
        return self.known(self.encoder.tokenize([text])[0])

    def agree(self, text):
        return self.ours(text) == self.theirs.txt2vec(text)


def write_dictionary(path, tokens):
    lines = (token.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") for token in tokens)
    path.write_text("".join(f"{line}\t{i}\n" for i, line in enumerate(lines)), encoding="utf-8")


GPT2_FILES = {"vocab": "encoder.json", "merge": "vocab.bpe"}


def learn_bytes(folder, path):
    """A byte-level vocabulary where ParlAI's `gpt2` has its own, and beside a dictionary."""
    if not (folder / "gpt2").exists():
        (folder / "gpt2").mkdir()
        learner = ByteLevelBPETokenizer(add_prefix_space=False)
        texts = [WORDS, *(" ".join(WORDS.split()[i:]) for i in range(12)), "C:\\new\\table\\new\\table \\xc4\\n"]
        learner.train_from_iterator(texts, vocab_size=380, min_frequency=2, show_progress=False)
        learner.save_model(str(folder / "gpt2"))
        (folder / "gpt2" / "vocab.json").rename(folder / "gpt2" / "encoder.json")
        (folder / "gpt2" / "merges.txt").rename(folder / "gpt2" / "vocab.bpe")
    for name, file in GPT2_FILES.items():
        end = {"vocab": "vocab.json", "merge": "merges.txt"}[name]
        Path(f"{path}-{end}").write_bytes((folder / "gpt2" / file).read_bytes())


@pytest.fixture(scope="module")
def make_both(tmp_path_factory):
    """(kind, **options) -> a small dictionary of this kind, with codes trained by subword-nmt."""
    folder = tmp_path_factory.mktemp("dictionaries")

    def make(kind, **options):
        path = folder / f"{kind}{len(options)}.dict"
        if kind in BYTE_LEVEL:
            learn_bytes(folder, path)
            files = {f"bpe_{name}": str(folder / "gpt2" / file) for name, file in GPT2_FILES.items()}
            return Both(path, **{"dict_tokenizer": kind, "dict_lower": False, **files, **options})
        if not path.exists():
            tokens = [*dict.fromkeys(WORDS.lower().split()), "\n", "a", "b", "__start__", "at@@", "h", "e", "__newln__"]
            if kind == "bpe":
                with open(f"{path}.codecs", "w", encoding="utf-8") as codecs:
                    learn_bpe([f"{w} {n}" for n, w in enumerate(WORDS.lower().split(), 2)], codecs, 60, 2, is_dict=True)
                empty = DictionaryAgent(Opt({"dict_file": str(path), "dict_tokenizer": "bpe", "datapath": str(folder)}))
                tokens += empty.tokenize(WORDS.lower())
            write_dictionary(path, tokens)
        return Both(path, **{"dict_tokenizer": kind, "dict_lower": True, **options})

    return make


@pytest.fixture(scope="module")
def real(data_path, tmp_path_factory):
    """A dictionary of the size of the published poly-encoders'."""
    path = tmp_path_factory.mktemp("real") / "model.dict"
    vocabulary = json.loads((data_path / "bpe_54940" / "vocab.json").read_bytes())
    write_dictionary(path, sorted(vocabulary, key=vocabulary.get))
    merges = (data_path / "bpe_54940" / "merges.txt").read_bytes()
    path.with_suffix(".dict.codecs").write_bytes(merges)
    return Both(path, dict_tokenizer="bpe", dict_lower=True)


# ---- the same ids


@pytest.mark.parametrize("lower", [True, False])
@mostly_long("kind", ["bpe", "re", "split", "space", *BYTE_LEVEL], quick=2)
def test_any_text(kind, lower, make_both):
    both = make_both(kind, dict_lower=lower)

    @settings(max_examples=100, deadline=None)
    @given(TEXTS)
    @example("ΟΔΟΣ \u0391.Σ Σ \u0391Σ'\u0391")
    @example("hahahahahahah")
    @example("a\n\n b\r\nc")
    def check(text):
        assert both.agree(text)

    check()


@pytest.mark.parametrize("kind", BYTE_LEVEL)
@pytest.mark.parametrize(
    "options", [{"bpe_add_prefix_space": True}, {"bpe_add_prefix_space": False, "dict_lower": True}]
)
def test_byte_level_options(kind, options, make_both):
    both = make_both(kind, **options)

    @settings(max_examples=50, deadline=None)
    @given(TEXTS)
    @example("")
    @example("x \\n__START__ \\xc4")
    def check(text):
        assert both.agree(text)

    check()
    turns = ["the cat\nsat", "", "on the mat ."]
    separator = both.theirs.txt2vec("\n")
    expected = [i for turn in turns for i in [*separator, *both.theirs.txt2vec(turn)]][len(separator) :]
    assert both.encoder.tokenize_context(turns) == [1, *expected, 2]


def test_the_merges_of_gpt2_come_from_its_vocabulary(make_both):
    """Other machines do not have the files of ParlAI's data folder."""
    both = make_both("gpt2")
    fitted = (both.path.parent / "gpt2" / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    merges = json.loads(both.tokenizer.to_str())["model"]["merges"]
    assert [" ".join(pair) for pair in merges] == fitted
    assert len(fitted) > 50


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_missing_files_of_byte_level_dictionaries(file, make_both, tmp_path):
    both = make_both("bytelevelbpe")
    path = tmp_path / "model.dict"
    for source in both.path.parent.glob(f"{both.path.name}*"):
        (tmp_path / source.name.replace(both.path.name, path.name)).write_bytes(source.read_bytes())
    (tmp_path / f"model.dict-{file}").unlink()
    with pytest.raises(CheckpointError, match=f"model.dict-{file}: (cannot be read|no such file)"):
        read_parlai_dictionary(path, both.opt)


def test_an_empty_word_of_a_space_dictionary(tmp_path):
    """Two spaces have an empty word between them: the unknown token, or one of the dictionary."""
    for words in (["hi"], ["hi", "", "\n"]):
        path = tmp_path / f"{len(words)}.dict"
        write_dictionary(path, words)
        both = Both(path, dict_tokenizer="space")
        for text in ("hi  hi", "", "  ", "hi\nhi hi", "\x1f hi \u2003"):
            assert both.agree(text), text
        turns = ["hi", "", "a  hi"]
        expected = [i for turn in turns for i in [*both.theirs.txt2vec("\n"), *both.theirs.txt2vec(turn)]][1:]
        assert both.encoder.tokenize_context(turns) == [1, *expected, 2]


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_any_text_of_a_dictionary_of_the_real_size(real, text):
    assert real.agree(text)


@pytest.mark.long
def test_real_lines(real, data_path):
    """10,000 lines of persona chat, #ubuntu and Wikipedia."""
    files = ["ConvAI2/valid_self_original.txt", "ConvAI2/train_self_original_no_cands.txt"]
    files += ["dstc7/ubuntu_responses_subtask_1.tsv", "wiki_article_search/wikipedia_valid.txt.gz"]
    counts = [4500, 4000, 1000, 500]
    lines = []
    for file, count in zip(files, counts, strict=True):
        opened = gzip.open if file.endswith(".gz") else open
        with opened(data_path / file, "rt", encoding="utf-8") as text:
            lines += islice(text, count)
    assert len(lines) == 10_000
    assert len(real.theirs) == 54_944
    assert [real.known(ids) for ids in real.encoder.tokenize(lines)] == [real.theirs.txt2vec(line) for line in lines]


def test_a_piece_that_the_dictionary_lacks_has_an_id_behind_its_last(make_both):
    both = make_both("bpe")
    size = len(both.theirs)
    extra = {i for i in both.tokenizer.get_vocab().values() if i >= size}
    assert extra == set(range(size, both.tokenizer.get_vocab_size()))
    assert count_parlai_tokens(both.path, both.opt) == size
    used = [i for i in both.encoder.tokenize(["ha haha others"])[0] if i >= size]
    assert used, "the test's text has no such piece"


def test_contexts_are_joined_as_parlai_joins_them(make_both):
    for kind in ("bpe", "re"):
        both = make_both(kind)
        turns = ["the cat\nsat", "", "on the mat ."]
        expected = both.theirs.txt2vec("\n".join(turns))
        assert both.known(both.encoder.tokenize_context(turns)) == [1, *expected, 2]
        assert both.known(both.encoder.separator_ids) == both.theirs.txt2vec("\n") != []


def test_special_tokens_of_texts_are_text(make_both):
    for kind in ("bpe", "re", "split"):
        both = make_both(kind)
        assert (both.encoder.pad_id, both.encoder.start_id, both.encoder.end_id) == (0, 1, 2)
        assert both.agree("__start__ __end__ __null__")


def test_a_special_token_that_is_a_word_of_the_merges(tmp_path):
    """Merges that make the word `__end__`: ParlAI gives it the end token's id."""
    path = tmp_path / "model.dict"
    write_dictionary(path, ["__e@@", "__start__"])
    pairs = ["_ _</w>", "_ _", "__ e", "n d", "nd __</w>", "__e nd__</w>"]
    path.with_suffix(".dict.codecs").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    both = Both(path, dict_tokenizer="bpe")
    assert both.ours("__end__") == both.theirs.txt2vec("__end__") == [2]
    assert both.encoder.end_id == 2


def test_decoding(make_both):
    encoder = make_both("bpe").encoder
    assert encoder.tokenizer.decode(encoder.tokenize(["the other cats"])[0]) == "the other cats"


@pytest.mark.parametrize("special", ["__PAD__", "<pad>"])
def test_other_special_tokens(tmp_path, special):
    path = tmp_path / "model.dict"
    write_dictionary(path, ["hi", "__NULL__", "__UNK__", "there"])
    both = Both(path, dict_tokenizer="re", dict_nulltoken=special)
    assert both.agree("hi there you")
    assert count_parlai_tokens(path, both.opt) == len(both.theirs)


def test_tokens_that_parlai_adds_when_it_reads_a_dictionary(make_both):
    both = make_both("re")
    known = len(both.theirs)
    assert count_parlai_tokens(both.path, both.opt | {"person_tokens": True}) == known + 2
    padded = count_parlai_tokens(both.path, both.opt | {"fp16": True})
    assert padded % 8 == 0
    assert known <= padded < known + 8


# ---- errors


@pytest.mark.parametrize("kind", ["nltk", "char"])
def test_kinds_that_cannot_be_read(kind, make_both):
    with pytest.raises(ConfigError, match=f"dict_tokenizer {kind}.*; those of bpe, re, split, space, gpt2, .* can"):
        read_parlai_dictionary(make_both("re").path, {"dict_tokenizer": kind})


def test_options_that_cannot_be_followed(make_both):
    with pytest.raises(ConfigError, match="dict_max_ngram_size 2"):
        read_parlai_dictionary(make_both("re").path, {"dict_tokenizer": "re", "dict_max_ngram_size": 2})


def test_missing_files(tmp_path):
    path = tmp_path / "model.dict"
    with pytest.raises(CheckpointError, match=r"model\.dict: cannot be read"):
        read_parlai_dictionary(path, {"dict_tokenizer": "re"})
    write_dictionary(path, ["hi"])
    with pytest.raises(CheckpointError, match=r"model\.dict\.codecs: cannot be read"):
        read_parlai_dictionary(path, {"dict_tokenizer": "bpe"})
