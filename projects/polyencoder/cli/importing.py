"""`polyencoder import FILE FOLDER`: models that ParlAI, fairseq or XLM trained, as folders of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.export.folder import check_no_model, export_folder, placing
from polyencoder.hub.resolve import there
from polyencoder.importing import import_parlai, is_parlai_model
from polyencoder.importing.fairseq import import_fairseq
from polyencoder.importing.pickles import read_checkpoint
from polyencoder.importing.xlm import import_xlm
from polyencoder.ranker.ranker import Ranker
from polyencoder.storage.checkpoint import CONFIG, CONFIG_KEY
from polyencoder.storage.files import check_writable_folder, explaining

__all__ = ["import_model"]


def import_model(
    file: Annotated[Path, typer.Argument(help="A model file of ParlAI, or a checkpoint of fairseq or XLM.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write.")],
    dictionary: Annotated[Path | None, typer.Option(help="fairseq: the model's dict.txt.")] = None,
    encoder_json: Annotated[Path | None, typer.Option(help="fairseq: GPT-2's encoder.json.")] = None,
    vocab_bpe: Annotated[Path | None, typer.Option(help="fairseq: GPT-2's vocab.bpe.")] = None,
    codes: Annotated[Path | None, typer.Option(help="XLM: fastBPE's codes (merges).")] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="XLM: fastBPE's vocabulary, if the checkpoint has none.")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="XLM: language of the segments; once for both, or once for each.")
    ] = None,
    keep_case: Annotated[
        bool,
        typer.Option("--keep-case", help="XLM: keep capitals and accents, as multilingual models do."),
    ] = False,
    tokenized: Annotated[
        bool, typer.Option("--tokenized", help="XLM: text is already split into words by spaces.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a model in FOLDER.")] = False,
) -> None:
    """Convert a model trained with ParlAI, fairseq or XLM into a folder; its kind is detected.

    A bi-, poly- or cross-encoder of ParlAI (FILE with FILE.opt and FILE.dict beside it) becomes a ranker; a RoBERTa of
    fairseq or an encoder of XLM becomes a backbone, to be trained. No code in a file is ever run.
    """
    given: dict[str, Any] = {
        "--dictionary": dictionary,
        "--encoder-json": encoder_json,
        "--vocab-bpe": vocab_bpe,
        "--codes": codes,
        "--vocabulary": vocabulary,
        "--language": language,
        "--keep-case": keep_case,
        "--tokenized": tokenized,
    }
    given = {flag: value for flag, value in given.items() if value}
    check_writable_folder(folder, argument="folder")
    kind = _kind(file)
    _check_flags(given, kind, file=file)
    check_no_model(folder, overwrite=overwrite)
    _IMPORTS[kind](file, folder, given)


def _kind(file: Path) -> str:
    """Who trained the model: ParlAI, fairseq or XLM, by the options that are there."""
    if not (there(file) and file.is_file()):
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


_FLAGS: dict[str, tuple[str, ...]] = {
    "ParlAI": (),
    "fairseq": ("--dictionary", "--encoder-json", "--vocab-bpe"),
    "XLM": ("--codes", "--vocabulary", "--language", "--keep-case", "--tokenized"),
}
_NEEDED = {"ParlAI": (), "fairseq": _FLAGS["fairseq"], "XLM": ("--codes",)}


def _check_flags(given: Mapping[str, Any], kind: str, *, file: Path) -> None:
    if missing := [flag for flag in _NEEDED[kind] if flag not in given]:
        raise ConfigError(f"{file} is a checkpoint of {kind}: give {', '.join(missing)} too")
    if unused := [flag for flag in given if flag not in _FLAGS[kind]]:
        raise ConfigError(f"{file} is a model of {kind}, which {unused[0]} has no meaning for: leave it out")


def _import_parlai(file: Path, folder: Path, given: Mapping[str, Any]) -> None:
    ranker = Ranker(*import_parlai(file), device="cpu")
    export_folder(ranker, folder)
    config = ranker.model.config
    typer.echo(f"{folder}: ParlAI's {config.architecture}-encoder, {_size(config.backbone)}")
    typer.echo(f'next: Ranker.from_pretrained("{folder}") in Python' + _search(ranker, folder))


def _search(ranker: Ranker, folder: Path) -> str:
    if not ranker.model.has_vectors:
        return f", or polyencoder search --rerank {folder} ..."
    return f", or polyencoder index --model {folder} --candidates FILE --out INDEX"


def _import_fairseq(file: Path, folder: Path, given: Mapping[str, Any]) -> None:
    with explaining(folder, CheckpointError), placing(folder) as made:
        import_fairseq(
            file,
            dictionary=given["--dictionary"],
            encoder_json=given["--encoder-json"],
            vocab_bpe=given["--vocab-bpe"],
            out=made,
        )
    _report_backbone(folder, "fairseq")


def _import_xlm(file: Path, folder: Path, given: Mapping[str, Any]) -> None:
    with explaining(folder, CheckpointError), placing(folder) as made:
        import_xlm(
            file,
            codes=given["--codes"],
            out=made,
            vocabulary=given.get("--vocabulary"),
            languages=given.get("--language", ()),
            lower_case="--keep-case" not in given,
            tokenized="--tokenized" in given,
        )
    _report_backbone(folder, "XLM")


def _report_backbone(folder: Path, origin: str) -> None:
    config = json.loads((folder / CONFIG).read_bytes())
    typer.echo(f"{folder}: an encoder that {origin} trained, {_size(config)}")
    typer.echo(f"next: parlai train_model -m polyencoder --backbone {folder} -t TASK -mf FILE --output-scaling auto")


def _size(backbone: Mapping[str, Any]) -> str:
    layers, dim, tokens = (backbone[key] for key in ("num_hidden_layers", "hidden_size", "vocab_size"))
    return f"{backbone['model_type']}, {layers} layers, {dim} dimensions, {tokens:,} tokens"


_IMPORTS: dict[str, Callable[[Path, Path, Mapping[str, Any]], None]] = {
    "ParlAI": _import_parlai,
    "fairseq": _import_fairseq,
    "XLM": _import_xlm,
}
