"""sentencepiece's models as fast tokenizers: pieces equal the library's own."""

from __future__ import annotations

import importlib
import io
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from polyencoder.errors import CheckpointError
from polyencoder.importing.fairseq_dictionary import FairseqDictionary
from polyencoder.importing.sentencepiece_model import SentencePieceModel, read_sentencepiece
from tests.polyencoder.importing.fairseq_texts import dictionary_of, ids_of

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")

KINDS = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "identity": {"model_type": "unigram", "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 340},
    "own symbols": {"model_type": "unigram", "user_defined_symbols": ["[name]", "are you"]},
    "lower case": {
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "normalization_rule_name": "nmt_nfkc_cf",
    },
}
# full-width and half-width forms, a ligature, accents, an ideographic space, unknown letters, a control character
LETTERS = [*"aehlnorstuwy '.,?!HI</[]", *"ＨＩｈｉﬁéàñ①㌔ｶ", "\u3000", "\u2581", "жщ", "\x07", "are you", "[name]"]


class Trained(NamedTuple):
    kind: str
    processor: Any
    dictionary: FairseqDictionary
    model: SentencePieceModel
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return self.kind  # hypothesis shows it

    def expected(self, text: str) -> list[int]:
        """The ids of sentencepiece's own pieces, which fairseq joins with spaces and splits."""
        return [
            self.dictionary.ids.get(piece, 3) for piece in " ".join(self.processor.encode(text, out_type=str)).split()
        ]

    def ids(self, text: str) -> list[int]:
        return ids_of(self.tokenizer, text, size=len(self.dictionary.ids))


@pytest.fixture(scope="module", params=KINDS)
def trained(request, tmp_path_factory, sentences) -> Trained:
    folder, model = tmp_path_factory.mktemp("sentencepiece"), io.BytesIO()
    options = {"vocab_size": 90, "hard_vocab_limit": False, "minloglevel": 2} | KINDS[request.param]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    (folder / "x.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    lines = [" ".join(processor.encode(line, out_type=str)) for line in sentences[: len(sentences) // 2]]
    dictionary = dictionary_of(lines, folder / "dict.txt")
    read = read_sentencepiece(folder / "x.model")
    tokenizer = read.tokenizer(dictionary.ids, special=dictionary.special, unknown="<unk>")
    return Trained(request.param, processor, dictionary, read, tokenizer)


@given(st.lists(st.sampled_from(LETTERS), max_size=30).map("".join))
def test_ids_are_those_of_sentencepieces_pieces(trained, text):
    without_others = re.sub(r"\s", " ", text) if trained.kind == "identity" else text  # fairseq drops other white space
    assert trained.ids(text) == trained.expected(without_others)


def test_sentences(trained, sentences):
    for sentence in sentences:
        pieces = trained.processor.encode(sentence, out_type=str)
        assert all(trained.model.makes(piece) for piece in pieces)
        assert trained.ids(sentence) == trained.expected(sentence)
        ids = trained.tokenizer.encode(sentence, add_special_tokens=False).ids
        assert trained.tokenizer.decode(ids) == trained.processor.decode(pieces)


def test_a_typed_special_token_is_text(trained):
    assert not {0, 1, 2, trained.dictionary.ids["<mask>"]} & set(trained.ids("a <s> b<pad></s> <mask>"))
    assert trained.ids("a <s") == trained.expected("a <s")


def test_what_texts_can_have(trained):
    assert trained.model.makes("жщ")  # unknown characters stay together
    assert not trained.model.makes("\u2581of another model")


@pytest.mark.parametrize("kind", ["char", "word"])
def test_other_types_of_models(tmp_path, sentences, kind):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type=kind,
        vocab_size=40,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (tmp_path / "x.model").write_bytes(model.getvalue())
    with pytest.raises(CheckpointError, match=r"x\.model: its type of sentencepiece model is not supported"):
        read_sentencepiece(tmp_path / "x.model")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"#version: 0.2\na b\n", "not a model of sentencepiece"), (b"", "it has no pieces"), (None, "no such file")],
)
def test_what_is_no_model(tmp_path, content, message):
    if content is not None:
        (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"x\.model: .*{message}"):
        read_sentencepiece(tmp_path / "x.model")


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"score": float("nan")}, "the score of its piece 'a' is not a finite number"),
        ({"score": float("inf")}, "the score of its piece 'a' is not a finite number"),
        ({"charsmap": b"garbage"}, "its table of characters cannot be read"),
    ],
    ids=str,
)
def test_a_damaged_model(tmp_path, field, message):
    proto = importlib.import_module("sentencepiece.sentencepiece_model_pb2").ModelProto()
    proto.pieces.add(piece="a", score=field.get("score", -1.0))
    proto.normalizer_spec.precompiled_charsmap = field.get("charsmap", b"")
    (tmp_path / "x.model").write_bytes(proto.SerializeToString())
    with pytest.raises(CheckpointError, match=rf"x\.model: damaged: {message}"):
        read_sentencepiece(tmp_path / "x.model")
