"""Unigram and BPE models of sentencepiece, as fast tokenizers with the ids of another dictionary."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from polyencoder.errors import CheckpointError
from polyencoder.importing.patterns import white_space
from polyencoder.packages import require

_SPACE = "\u2581"
_UNIGRAM, _BPE = 1, 2  # TrainerSpec.ModelType
_NORMAL, _USER_DEFINED, _BYTE = 1, 4, 6  # ModelProto.SentencePiece.Type


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model that its tokens depend on."""

    path: str
    scores: Mapping[str, float]
    """Piece -> score. Higher is better."""
    is_unigram: bool
    byte_fallback: bool
    normalizer: normalizers.Normalizer

    def makes(self, symbol: str) -> bool:
        """Whether texts can have a symbol: a piece, or characters that no piece has, which stay together."""
        return symbol in self.scores or not any(letter in self.scores for letter in symbol)

    def tokenizer(self, ids: Mapping[str, int], *, special: Sequence[str], unknown: str) -> Tokenizer:
        """The tokenizer of a dictionary.

        Args:
            ids: symbol -> id, from 0. Pieces that it lacks get the next ids.
            special: symbols that no text has, whatever the pieces are.
            unknown: the special one for what is unknown.
        """
        is_special = set(special)
        # No text has a space when its pieces are looked for, so none has these names
        names = [symbol if symbol in self.scores or symbol in is_special else f" {symbol}" for symbol in ids]
        names += [piece for piece in self.scores if piece not in ids]
        worst = min(self.scores.values())
        if self.is_unigram:
            scored = [(name, self.scores.get(name, worst)) for name in names]
            model: models.Model = models.Unigram(scored, ids[unknown], self.byte_fallback)
        else:
            vocabulary = {name: i for i, name in enumerate(names)}
            model = models.BPE(
                vocabulary, self._merges(), unk_token=unknown, fuse_unk=True, byte_fallback=self.byte_fallback
            )
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = self.normalizer
        steps: list[pre_tokenizers.PreTokenizer] = []
        if not any(_SPACE in piece[1:] for piece in self.scores):  # the same pieces, in less time
            steps.append(pre_tokenizers.Split(_SPACE, behavior="merged_with_next"))
        # a special token that somebody types is text: no piece may reach over its first character
        typed = rf"<(?=(?:{'|'.join(token[1:-1] for token in special)})>)"
        steps.append(pre_tokenizers.Split(Regex(typed), behavior="isolated"))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace(_SPACE, " "),
                *([decoders.ByteFallback()] if self.byte_fallback else []),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        return tokenizer

    def _merges(self) -> list[tuple[str, str]]:
        """The pairs of pieces that make another one, the best one first."""
        pairs = [
            (-score, piece[:i], piece[i:])
            for piece, score in self.scores.items()
            for i in range(1, len(piece))
            if piece[:i] in self.scores and piece[i:] in self.scores
        ]
        return [(left, right) for _, left, right in sorted(pairs, key=lambda pair: pair[0])]


def read_sentencepiece(path: str | os.PathLike[str]) -> SentencePieceModel:
    """Reads the `.model` file of a unigram or BPE model.

    Raises:
        CheckpointError: it is missing, not a model, or of a kind that the `tokenizers` library has no counterpart for.
        ConfigError: the package `sentencepiece` is not installed.
    """
    name = os.fspath(path)
    require("google.protobuf", extra="fairseq")
    proto = require("sentencepiece.sentencepiece_model_pb2", extra="fairseq").ModelProto()
    try:
        proto.ParseFromString(Path(path).read_bytes())
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error
        raise CheckpointError(f"{name}: cannot be read ({reason}); it must hold a model of sentencepiece") from None
    except Exception as error:  # protobuf's own, without an importable base in all of its versions
        raise CheckpointError(f"{name}: not a model of sentencepiece ({error})") from None
    pieces = {piece.piece: piece for piece in proto.pieces if piece.type in (_NORMAL, _USER_DEFINED, _BYTE)}
    scores = {piece.piece: piece.score for piece in pieces.values() if piece.type == _NORMAL}
    if not scores:
        raise CheckpointError(f"{name}: not a model of sentencepiece (it has no pieces)")
    if strange := next((piece for piece, score in scores.items() if not math.isfinite(score)), None):
        raise CheckpointError(f"{name}: damaged: the score of its piece {strange!r:.60} is not a finite number")
    trainer, spec = proto.trainer_spec, proto.normalizer_spec
    own = [piece for piece in pieces.values() if piece.type == _USER_DEFINED]
    if trainer.model_type not in (_UNIGRAM, _BPE) or trainer.treat_whitespace_as_suffix or not spec.escape_whitespaces:
        raise CheckpointError(f"{name}: its type of sentencepiece model is not supported; unigram and bpe are")
    if own and trainer.model_type == _BPE:
        raise CheckpointError(f"{name}: has its user's symbol {own[0].piece!r}, which is supported for unigram alone")
    best, worst = max(scores.values()), min(scores.values())
    # sentencepiece's bonus: a symbol of the user's is preferred to any other pieces of the same characters
    scores |= {piece.piece: len(piece.piece) * best - 0.1 for piece in own}
    scores |= {piece.piece: worst for piece in pieces.values() if piece.type == _BYTE}
    return SentencePieceModel(
        path=name,
        scores=scores,
        is_unigram=trainer.model_type == _UNIGRAM,
        byte_fallback=trainer.byte_fallback,
        normalizer=_normalizer(spec, origin=name),
    )


def _normalizer(spec: Any, *, origin: str) -> normalizers.Normalizer:
    """sentencepiece's normalization: characters, then spaces, which become a sign."""
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        try:
            steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
        except Exception as error:  # the library has no class of its own for it
            raise CheckpointError(f"{origin}: damaged: its table of characters cannot be read ({error})") from None
    # some kinds of normalization leave other white space, at which fairseq splits
    steps.append(normalizers.Replace(Regex(white_space()), " "))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(" "))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
