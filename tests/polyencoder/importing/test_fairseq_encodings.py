"""The encodings of fairseq's dictionaries: ids of the libraries that fairseq calls, looked up in the dictionary."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyencoder.errors import CheckpointError
from polyencoder.importing.fairseq_dictionary import FairseqDictionary
from polyencoder.importing.fairseq_encodings import Codes, Gpt2, build_tokenizer
from tests.polyencoder.importing.fairseq_texts import dictionary_of, ids_of, words_of

pytestmark = pytest.mark.slow

TEXTS = st.text(st.sampled_from([*"abdehlnorstuw '.,?!</@", "\u2028", "\t", "\x1f", "ß", "\U0001f600"]), max_size=40)


@pytest.fixture(scope="module")
def codes(tmp_path_factory, sentences) -> SimpleNamespace:
    """The codes of subword-nmt, the same ones as fastBPE writes them, and the dictionary."""
    pytest.importorskip("subword_nmt", reason="subword-nmt is not installed")
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    folder, learned = tmp_path_factory.mktemp("codes"), io.StringIO()
    learn_bpe([f"{line}\n" for line in sentences], learned, 60)
    (folder / "codes").write_text(learned.getvalue(), encoding="utf-8")
    merges = learned.getvalue().splitlines()[1:]
    (folder / "fast").write_text("".join(f"{merge} {99 - n}\n" for n, merge in enumerate(merges)), encoding="utf-8")
    bpe = BPE(io.StringIO(learned.getvalue()))
    lines = [bpe.process_line(line) for line in sentences[: len(sentences) // 2]]  # so some pieces are unknown
    dictionary = dictionary_of(lines, folder / "dict.txt")
    tokenizers = {name: build_tokenizer(Codes(folder / name), dictionary) for name in ("codes", "fast")}
    return SimpleNamespace(folder=folder, bpe=bpe, dictionary=dictionary, tokenizers=tokenizers)


class TestCodes:
    @given(TEXTS)
    def test_ids_are_those_of_subword_nmt(self, codes, text):
        pieces = codes.bpe.process_line(words_of(text)).split()
        expected = [codes.dictionary.ids.get(piece, 3) for piece in pieces]
        for tokenizer in codes.tokenizers.values():
            assert ids_of(tokenizer, text, size=len(codes.dictionary.ids)) == expected

    def test_whole_sentences_and_special_tokens(self, codes, sentences):
        tokenizer, ids = codes.tokenizers["fast"], codes.dictionary.ids
        unknown = 0
        for sentence in sentences:
            expected = [ids.get(piece, 3) for piece in codes.bpe.process_line(sentence).split()]
            unknown += expected.count(3)
            assert ids_of(tokenizer, sentence, size=len(ids)) == expected
            assert tokenizer.encode(sentence).ids[:: len(tokenizer.encode(sentence).ids) - 1] == [0, 2]
            assert 3 in expected or tokenizer.decode(tokenizer.encode(sentence).ids) == sentence
        assert unknown

    def test_codes_that_do_not_belong_to_the_dictionary(self, codes, tmp_path):
        beginning = (codes.folder / "codes").read_text(encoding="utf-8").splitlines()[:20]
        (tmp_path / "few").write_text("\n".join(beginning), encoding="utf-8")
        with pytest.raises(
            CheckpointError, match=r"dict\.txt: \d+ of its \d+ symbols, such as '\w+@@', are not of .*few"
        ):
            Codes(tmp_path / "few").convert_dictionary(codes.dictionary)

    def test_the_papers_vocabulary_has_symbols_that_its_merges_do_not_make(self, data_path, tmp_path):
        from subword_nmt.apply_bpe import BPE

        symbols = json.loads((data_path / "bpe_54940" / "vocab.json").read_text(encoding="utf-8"))
        path, merges = tmp_path / "dict.txt", data_path / "bpe_54940" / "merges.txt"
        path.write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
        dictionary = FairseqDictionary.read(path, n_tokens=len(symbols) + 5, origin="model.pt")
        tokenizer = build_tokenizer(Codes(merges), dictionary)
        bpe = BPE(io.StringIO(merges.read_text(encoding="utf-8")))
        for text in ("hello ! how are you ?", "the 15th of unbelievably são paulo", "__newln__ i 'm in 1952 ."):
            expected = [dictionary.ids.get(piece, 3) for piece in bpe.process_line(text).split()]
            assert ids_of(tokenizer, text, size=len(dictionary.ids)) == expected
        beginning = merges.read_text(encoding="utf-8").splitlines()[:28_000]
        (tmp_path / "few").write_text("\n".join(beginning), encoding="utf-8")
        with pytest.raises(CheckpointError, match="are not of .*few; give the files of its own encoding"):
            Codes(tmp_path / "few").convert_dictionary(dictionary)

    def test_codes_of_subword_nmt_without_a_version_are_encoded_differently(self, codes, tmp_path):
        old = (codes.folder / "codes").read_text(encoding="utf-8").split("\n", 1)[1]
        (tmp_path / "old").write_text(old, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"old: begins with .*, not with subword-nmt's '#version: 0\.2'"):
            Codes(tmp_path / "old").convert_dictionary(codes.dictionary)

    def test_no_file(self, codes, tmp_path):
        with pytest.raises(CheckpointError, match=r"none: cannot be read \(no such file\); it must hold the codes of"):
            Codes(tmp_path / "none").convert_dictionary(codes.dictionary)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ('{"a": 0, "b": 1, "<unk>": 2}', r"encoder\.json: a token has the name of another symbol of .*dict\.txt"),
        ("[" * 100_000, r"encoder\.json: not valid JSON"),
    ],
    ids=["a special token", "deep"],
)
def test_an_encoder_json_that_cannot_be_gpt2s(tmp_path, encoder, message):
    (tmp_path / "encoder.json").write_text(encoder, encoding="utf-8")
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\na b\n", encoding="utf-8")
    dictionary = dictionary_of(["0 1 2"], tmp_path / "dict.txt")
    with pytest.raises(CheckpointError, match=message):
        Gpt2(tmp_path / "encoder.json", tmp_path / "vocab.bpe").convert_dictionary(dictionary)
