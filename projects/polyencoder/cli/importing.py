"""`polyencoder import FILE FOLDER`: converts models trained with ParlAI or fairseq to folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from polyencoder.cli.shared.output import say
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.hub.resolve import exists
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.metadata import Needs, Without
from polyencoder.storage.files import check_writable_folder, reporting_write_errors
from polyencoder.storage.names import MODULE_CONFIG

if TYPE_CHECKING:
    from polyencoder.importing.fairseq_encodings import Encoding


@settings()
class ImportSettings(Settings):
    """The files that fairseq's checkpoints need."""

    dictionary: Path | None = None
    """fairseq: the model's dict.txt."""
    encoder_json: Annotated[Path | None, Needs("vocab_bpe")] = None
    """fairseq with GPT-2's BPE: encoder.json."""
    vocab_bpe: Annotated[Path | None, Needs("encoder_json")] = None
    """fairseq with GPT-2's BPE: vocab.bpe."""
    codes: Annotated[Path | None, Without("encoder_json")] = None
    """fairseq with fastBPE or subword-nmt: the codes (merges)."""
    overwrite: bool = False
    """Replace a model in FOLDER."""


_DEFAULTS = ImportSettings()


def import_model(file: Path, folder: Path, /, *, settings: ImportSettings = _DEFAULTS) -> None:
    """Convert a model trained with ParlAI or fairseq into a folder; its kind is detected.

    A bi-, poly- or cross-encoder of ParlAI (FILE with FILE.opt and FILE.dict beside it) becomes a ranker; a RoBERTa of
    fairseq becomes a backbone, to be trained. No code in a file is ever run. The dictionary of fairseq is of GPT-2's
    BPE, of fastBPE or of subword-nmt.

    Args:
        file: A model file of ParlAI, or a checkpoint of fairseq.
        folder: The folder to write.
    """
    from polyencoder.export.folder import check_no_model, export_folder, publishing_model
    from polyencoder.importing import import_parlai
    from polyencoder.importing.fairseq import import_fairseq
    from polyencoder.ranker import Ranker

    check_writable_folder(folder, argument="folder")
    is_fairseq = _is_fairseq(file)
    check_no_model(folder, overwrite=settings.overwrite)
    if not is_fairseq:
        for name in sorted(settings.explicit - {"overwrite"}):
            raise ConfigError(
                f"{file} is a model of ParlAI, which {name} has no meaning for: leave it out", argument=name
            )
        ranker = Ranker(*import_parlai(file), device="cpu")
        export_folder(ranker, folder, overwrite=settings.overwrite)
        search = f"polyencoder search --rerank {folder} ..."
        if ranker.model.has_vectors:
            search = f"polyencoder index --model {folder} --candidates FILE --out INDEX"
        trained = ranker.model.config
        say(f"{folder}: ParlAI's {trained.architecture}-encoder, {_describe_size(trained.backbone)}")
        say(f'next: Ranker.from_pretrained("{folder}") in Python, or {search}')
        return
    if settings.dictionary is None:
        raise ConfigError(f"{file} is a checkpoint of fairseq: give --dictionary too")
    encoding = _choose_encoding(settings)
    with (
        reporting_write_errors(folder, CheckpointError),
        publishing_model(folder, overwrite=settings.overwrite) as temporary,
    ):
        import_fairseq(file, dictionary=settings.dictionary, encoding=encoding, out=temporary)
    config = json.loads((folder / MODULE_CONFIG).read_bytes())
    say(f"{folder}: an encoder that fairseq trained, {_describe_size(config)}")
    say(f"next: parlai train_model -m polyencoder --backbone {folder} -t TASK -mf FILE --output-scaling auto")


def _choose_encoding(settings: ImportSettings) -> Encoding:
    """fairseq's encoding, by the files that were given."""
    from polyencoder.importing.fairseq_encodings import Codes, Gpt2

    if settings.encoder_json and settings.vocab_bpe:
        return Gpt2(settings.encoder_json, settings.vocab_bpe)
    if settings.codes:
        return Codes(settings.codes)
    raise ConfigError(
        "import reads dictionaries of GPT-2's BPE, with --encoder-json and --vocab-bpe, and of fastBPE or subword-nmt, "
        "with --codes: give the files of the model's own"
    )


def _is_fairseq(file: Path) -> bool:
    """Whether fairseq trained a model, not ParlAI, by its keys and the files beside it. CheckpointError if neither."""
    from polyencoder.checkpoint import CONFIG_KEY
    from polyencoder.importing import is_parlai_model
    from polyencoder.importing.pickles import read_checkpoint

    if exists(file) and file.is_dir():
        raise CheckpointError(f"{file!s:.200}: is a folder; give the model's file in it")
    if not (exists(file) and file.is_file()):
        raise CheckpointError(f"{file!s:.200}: no such file")
    if is_parlai_model(file):
        return False
    states = read_checkpoint(file)
    if CONFIG_KEY in states:
        raise CheckpointError(f"{file}: a model file of ours: write it as a folder with `polyencoder export`")
    if "params" in states and ("model" in states or "encoder" in states):
        raise CheckpointError(f"{file}: a checkpoint of XLM, which cannot be imported; fairseq's RoBERTa can")
    if "args" in states or "cfg" in states:
        return True
    if Path(f"{file}.opt").is_file():
        return False  # of another kind: its reader says which
    keys = ", ".join(map(str, list(states)[:8])) or "nothing"
    raise CheckpointError(
        f"{file}: cannot be told whose model it is: there is no {file.name}.opt beside it, as ParlAI writes, and in it "
        f"neither `args` nor `cfg`, as in fairseq's, but: {keys}"
    )


def _describe_size(backbone: Mapping[str, Any]) -> str:
    layers, dim, tokens = (backbone[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return f"{backbone['model_type']}, {layers} layers, {dim} dimensions, {tokens:,} tokens"
