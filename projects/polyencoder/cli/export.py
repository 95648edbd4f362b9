"""`polyencoder export`: a trained ranker as a folder for production, with a model card and ONNX graphs."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from polyencoder.cli.shared.output import say
from polyencoder.config import WeightDtype
from polyencoder.data.example import Example
from polyencoder.data.layouts import Columns
from polyencoder.data.pairs import read_examples
from polyencoder.errors import ConfigError
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.fields import Files
from polyencoder.settings.metadata import Needs
from polyencoder.validation import Count


@settings()
class ExportSettings(Settings):
    """Settings of the exported folder."""

    dtype: WeightDtype = "float32"
    """Precision of the weights."""
    onnx: bool = False
    """Also write ONNX graphs, checked against torch."""
    int8: bool = False
    """Also write ONNX graphs in int8, for CPUs."""
    vector_dim: Count | None = None
    """Keep this many first dimensions of vectors, for smaller indexes: one of those that the model was trained with
    (--matryoshka of polyencoder train)."""
    quantize: bool = False
    """Convert models: store embeddings in 8 bits and other weights in 16, even if not trained for it."""
    check: Annotated[Files | None, Needs("int8")] = None
    """FILE of examples (JSON lines, CSV, TSV or Parquet) with `context`, `response` and perhaps `candidates` (else up
    to 19 other responses are drawn), to measure what int8 costs in R@1."""
    columns: Annotated[Columns, Needs("check")] = field(default_factory=Columns)


_DEFAULTS = ExportSettings()


def export(
    model: Annotated[str, Parameter(alias="-m")],
    folder: Annotated[Path, Parameter(name="--out", alias="-o")],
    *,
    settings: ExportSettings = _DEFAULTS,
) -> None:
    """Write a ranker as a folder that needs no ParlAI, and that sentence-transformers reads, with README.md.

    After an error the folder is unchanged.

    Args:
        model: A model file of parlai train_model, a model folder, or a hub id.
        folder: The folder to write: a new one, or an earlier export.
    """
    from polyencoder.checkpoint import holds_encoder
    from polyencoder.export.folder import BESIDE, README, export_folder
    from polyencoder.export.training_run import find_trained_dims, read_run
    from polyencoder.modeling.layout import list_layout_files
    from polyencoder.ranker import Ranker
    from polyencoder.storage.names import RECORD

    if (folder / RECORD).exists():
        raise ConfigError(f"{folder}: holds a training run, whose model an export would replace; give another folder")
    examples = read_examples(settings.check, columns=settings.columns)[0] if settings.check else []
    ranker = Ranker.from_pretrained(model, device="cpu")
    if settings.quantize:
        ranker.model.quantize()
    whole, run = settings.vector_dim is None, read_run(model)
    source = ranker.source  # a folder that was exported already has a card, which knows of the training
    earlier = source if source and (source / README).is_file() and not holds_encoder(model) else None
    untrained = False
    if settings.vector_dim is not None:
        shorter = ranker.shortened(settings.vector_dim)
        card = None if earlier is None else (earlier / README).read_text(encoding="utf-8")
        trained = find_trained_dims(run, card)
        untrained = settings.vector_dim < ranker.model.dim and settings.vector_dim not in trained
        ranker = shorter
    change = export_folder(
        ranker,
        folder,
        dtype=settings.dtype,
        run=run if whole else None,  # whose measures are of whole vectors
        earlier=earlier if whole else None,
        onnx=settings.onnx,
        int8=settings.int8,
        examples=examples,
    )
    for path in (folder / name for name in sorted((*list_layout_files(folder), *BESIDE))):
        if path.is_file():
            say(f"{path}  {path.stat().st_size / 1e6:,.1f} MB")
    if untrained:
        say(
            f"warning: {model} has no record of a training for its first {settings.vector_dim} dimensions "
            "(--matryoshka), which may rank worse: compare both with polyencoder evaluate",
            err=True,
        )
    if change:
        say(
            f"{_name_recall(examples)} on {len(examples):,} examples: {100 * change.before:.2f} with torch, "
            f"{100 * change.after:.2f} in int8 ({100 * (change.after - change.before):+.2f} points)"
        )


def _name_recall(examples: list[Example]) -> str:
    from polyencoder.evaluation.names import format_recall_name

    counts = {len(example.choices) for example in examples}
    return format_recall_name(1, counts.pop()) if len(counts) == 1 else "R@1"
