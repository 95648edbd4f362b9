"""`polyencoder export MODEL FOLDER`: a trained ranker as a folder for production, with a model card and ONNX graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from polyencoder.cli.flags import check_flags
from polyencoder.cli.options import CandidatesColumn, ContextColumn, ResponseColumn
from polyencoder.data.example import Example
from polyencoder.data.pairs import Columns, read_examples
from polyencoder.errors import ConfigError
from polyencoder.evaluation.names import recall_name
from polyencoder.export.card import read_run
from polyencoder.export.folder import README, export_folder
from polyencoder.ranker.ranker import Ranker
from polyencoder.storage.checkpoint import WeightDtype

__all__ = ["export"]

_CHECK = (
    "With --int8: FILE of examples (JSON lines, CSV, TSV or Parquet) with `context`, `response` and perhaps "
    "`candidates` (else up to 19 other responses are drawn), to measure what int8 costs in R@1."
)
_QUANTIZE = "Convert models: store embeddings in 8 bits and other weights in 16, even if not trained for it."


def export(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="A model file of parlai train_model, a model folder, or a hub id.")],
    folder: Annotated[Path, typer.Argument(help="The folder to write: a new one, or an earlier export.")],
    dtype: Annotated[str, typer.Option(help="Precision of the weights: float32, float16 or bfloat16.")] = "float32",
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write ONNX graphs, checked against torch.")] = False,
    int8: Annotated[bool, typer.Option("--int8", help="Also write ONNX graphs in int8, for CPUs.")] = False,
    quantize: Annotated[bool, typer.Option("--quantize", help=_QUANTIZE)] = False,
    check: Annotated[Path | None, typer.Option(help=_CHECK)] = None,
    context: ContextColumn = "context",
    response: ResponseColumn = "response",
    candidates: CandidatesColumn = "candidates",
) -> None:
    """Write a ranker as a folder that needs no ParlAI: config.json, model.safetensors, tokenizer.json and README.md.

    Whatever goes wrong, the folder stays as it was.
    """
    check_flags(ctx, needs={"int8": ["check"], "check": ["context", "response", "candidates"]})
    examples = read_examples(check, columns=Columns(context, response, candidates))[0] if check else []
    ranker = Ranker.from_pretrained(model, device="cpu")
    if quantize:
        try:
            ranker.model.quantize()
        except ConfigError:
            kind = ranker.model.config.architecture
            raise ConfigError(f"--quantize is for convert models; {model} is {kind}") from None
    card = Path(model) / README  # of a folder that was exported already: it knows of the training
    change = export_folder(
        ranker,
        folder,
        dtype=cast("WeightDtype", dtype),  # which is checked there
        run=read_run(model),
        earlier_card=card.read_text(encoding="utf-8") if card.is_file() else None,
        onnx=onnx,
        int8=int8,
        examples=examples,
    )
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            typer.echo(f"{path}  {path.stat().st_size / 1e6:,.1f} MB")
    if change:
        typer.echo(
            f"{_recall(examples)} on {len(examples):,} examples: {100 * change.before:.2f} with torch, "
            f"{100 * change.after:.2f} in int8 ({100 * (change.after - change.before):+.2f} points)"
        )


def _recall(examples: list[Example]) -> str:
    """R@1 with the number of candidates, when that is the same for all."""
    counts = {len(example.choices) for example in examples}
    return recall_name(1, counts.pop()) if len(counts) == 1 else "R@1"
