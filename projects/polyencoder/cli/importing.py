"""`polyencoder import FILE FOLDER`: converts models trained with ParlAI, fairseq or XLM to folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyencoder.cli.shared.output import say
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.hub.resolve import exists
from polyencoder.settings.base import Settings, settings
from polyencoder.storage.files import check_writable_folder, reporting_write_errors
from polyencoder.storage.names import CONFIG

if TYPE_CHECKING:
    from polyencoder.importing.fairseq_encodings import Encoding


@settings()
class ImportSettings(Settings):
    """The files that fairseq's and XLM's checkpoints need, and how their texts are read."""

    dictionary: Path | None = None
    """fairseq: the model's dict.txt."""
    encoder_json: Path | None = None
    """fairseq with GPT-2's BPE: encoder.json."""
    vocab_bpe: Path | None = None
    """fairseq with GPT-2's BPE: vocab.bpe."""
    sentencepiece_model: Path | None = None
    """fairseq with sentencepiece: its model."""
    codes: Path | None = None
    """The codes (merges) of fastBPE, or for fairseq of subword-nmt."""
    vocabulary: Path | None = None
    """XLM: fastBPE's vocabulary, if the checkpoint has none."""
    language: tuple[str, ...] = ()
    """XLM: language of the segments; once for both, or once for each."""
    keep_case: bool = False
    """XLM: keep capitals and accents, as multilingual models do."""
    tokenized: bool = False
    """XLM: text is already split into words by spaces."""
    overwrite: bool = False
    """Replace a model in FOLDER."""


_DEFAULTS = ImportSettings()
_FLAGS: dict[str, tuple[str, ...]] = {
    "ParlAI": (),
    "fairseq": ("dictionary", "encoder_json", "vocab_bpe", "sentencepiece_model", "codes"),
    "XLM": ("codes", "vocabulary", "language", "keep_case", "tokenized"),
}
_NEEDED = {"ParlAI": (), "fairseq": ("dictionary",), "XLM": ("codes",)}


def import_model(file: Path, folder: Path, /, *, settings: ImportSettings = _DEFAULTS) -> None:
    """Convert a model trained with ParlAI, fairseq or XLM into a folder; its kind is detected.

    A bi-, poly- or cross-encoder of ParlAI (FILE with FILE.opt and FILE.dict beside it) becomes a ranker; a RoBERTa of
    fairseq or an encoder of XLM becomes a backbone, to be trained. No code in a file is ever run. The dictionary of
    fairseq is of GPT-2's BPE, of fastBPE, subword-nmt or sentencepiece, or, without any of their files, of whole words.

    Args:
        file: A model file of ParlAI, or a checkpoint of fairseq or XLM.
        folder: The folder to write.
    """
    from polyencoder.export.folder import check_no_model, export_folder, placing
    from polyencoder.importing import import_parlai
    from polyencoder.importing.fairseq import import_fairseq
    from polyencoder.importing.xlm import import_xlm
    from polyencoder.ranker import Ranker

    check_writable_folder(folder, argument="folder")
    kind = _kind(file)
    if missing := [name for name in _NEEDED[kind] if not getattr(settings, name)]:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise ConfigError(f"{file} is a checkpoint of {kind}: give {flags} too")
    for name in sorted(settings.given - {*_FLAGS[kind], "overwrite"}):
        raise ConfigError(f"{file} is a model of {kind}, which {name} has no meaning for: leave it out", argument=name)
    check_no_model(folder, overwrite=settings.overwrite)
    if kind == "ParlAI":
        ranker = Ranker(*import_parlai(file), device="cpu")
        export_folder(ranker, folder, overwrite=settings.overwrite)
        search = f"polyencoder search --rerank {folder} ..."
        if ranker.model.has_vectors:
            search = f"polyencoder index --model {folder} --candidates FILE --out INDEX"
        trained = ranker.model.config
        say(f"{folder}: ParlAI's {trained.architecture}-encoder, {_size(trained.backbone)}")
        say(f'next: Ranker.from_pretrained("{folder}") in Python, or {search}')
        return
    with reporting_write_errors(folder, CheckpointError), placing(folder, overwrite=settings.overwrite) as made:
        if kind == "fairseq":
            assert settings.dictionary
            import_fairseq(file, dictionary=settings.dictionary, encoding=_encoding(settings), out=made)
        else:
            assert settings.codes
            import_xlm(
                file,
                codes=settings.codes,
                out=made,
                vocabulary=settings.vocabulary,
                languages=list(settings.language),
                lower_case=not settings.keep_case,
                tokenized=settings.tokenized,
            )
    config = json.loads((folder / CONFIG).read_bytes())
    say(f"{folder}: an encoder that {kind} trained, {_size(config)}")
    say(f"next: parlai train_model -m polyencoder --backbone {folder} -t TASK -mf FILE --output-scaling auto")


def _encoding(settings: ImportSettings) -> Encoding:
    """fairseq's encoding, by the files that were given."""
    from polyencoder.importing.fairseq_encodings import Codes, Gpt2, PlainWords, SentencePiece

    found: list[Encoding] = []
    if settings.encoder_json or settings.vocab_bpe:
        if not (settings.encoder_json and settings.vocab_bpe):
            raise ConfigError("GPT-2's BPE needs two files: give --encoder-json and --vocab-bpe")
        found.append(Gpt2(settings.encoder_json, settings.vocab_bpe))
    if settings.codes:
        found.append(Codes(settings.codes))
    if settings.sentencepiece_model:
        found.append(SentencePiece(settings.sentencepiece_model))
    if len(found) > 1:
        raise ConfigError(
            "a dictionary is of one encoding: give either --encoder-json with --vocab-bpe, or --codes, or "
            "--sentencepiece-model"
        )
    return found[0] if found else PlainWords()


def _kind(file: Path) -> str:
    """The project that trained the model: ParlAI, fairseq or XLM, by its checkpoint's keys and the files beside it."""
    from polyencoder.checkpoint import CONFIG_KEY
    from polyencoder.importing import is_parlai_model
    from polyencoder.importing.pickles import read_checkpoint

    if exists(file) and file.is_dir():
        raise CheckpointError(f"{file!s:.200}: is a folder; give the model's file in it")
    if not (exists(file) and file.is_file()):
        raise CheckpointError(f"{file!s:.200}: no such file")
    if is_parlai_model(file):
        return "ParlAI"
    states = read_checkpoint(file)
    if CONFIG_KEY in states:
        raise CheckpointError(f"{file}: a model file of ours: write it as a folder with `polyencoder export`")
    if "params" in states:
        return "XLM"
    if "args" in states or "cfg" in states:
        return "fairseq"
    if Path(f"{file}.opt").is_file():
        return "ParlAI"  # of another kind: its reader says which
    found = ", ".join(map(str, list(states)[:8])) or "nothing"
    raise CheckpointError(
        f"{file}: cannot be told whose model it is: there is no {file.name}.opt beside it, as ParlAI writes, and in it "
        f"neither `args` or `cfg` (fairseq) nor `params` (XLM), but: {found}"
    )


def _size(backbone: Mapping[str, Any]) -> str:
    layers, dim, tokens = (backbone[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return f"{backbone['model_type']}, {layers} layers, {dim} dimensions, {tokens:,} tokens"
