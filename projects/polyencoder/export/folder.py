"""Exports a trained ranker as a folder: weights, configuration, tokenizer, model card, optionally ONNX graphs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from polyencoder.calibration import CalibratedRanker
from polyencoder.checkpoint import holds_ranker, load_folder, publishing_folder, write_model
from polyencoder.checks import check_place
from polyencoder.config import WeightDtype
from polyencoder.data.example import Example
from polyencoder.encoding.fingerprint import compute_model_fingerprint
from polyencoder.encoding.graph_files import DESCRIPTION, GRAPHS
from polyencoder.encoding.graphs import GraphEncoder
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.evaluation import recall_at_1
from polyencoder.export.card import copy_pictures, update_card, write_model_card
from polyencoder.export.training_run import TrainingRun
from polyencoder.pictures import CURVE, RELIABILITY
from polyencoder.storage.files import build_exists_error, explain_no_folder, reporting_write_errors
from polyencoder.storage.names import CALIBRATION, CONFIG, MODULE_CONFIG
from polyencoder.storage.publish import finish_publication

README = "README.md"
BESIDE = (CALIBRATION, README, CURVE, RELIABILITY, DESCRIPTION, *GRAPHS)
"""The files beside those of the model (`modeling.layout`) that an export writes or removes."""
_CHECKED = 8  # contexts of the user's examples on which graphs are compared with torch


def save_ranker(ranker: CalibratedRanker, folder: str | os.PathLike[str], *, dtype: WeightDtype = "float32") -> None:
    """Writes a model's files and any calibration; see `Ranker.save_pretrained`."""
    check_place("folder", folder)
    with reporting_write_errors(folder, CheckpointError), publishing_folder(folder, remove=[CALIBRATION]) as staging:
        write_model(staging, ranker.model, ranker.text, dtype=dtype)
        if ranker.calibration is not None:
            fingerprint = compute_model_fingerprint(ranker.model, ranker.text, dtype=dtype)
            ranker.calibration.of_model(fingerprint).save(staging)


class RecallChange(NamedTuple):
    """R@1 (0 to 1) of a ranker before and after quantization."""

    before: float
    after: float


def export_folder(
    ranker: CalibratedRanker,
    folder: str | os.PathLike[str],
    *,
    dtype: WeightDtype = "float32",
    run: TrainingRun | None = None,
    earlier: Path | None = None,
    onnx: bool = False,
    int8: bool = False,
    examples: Sequence[Example] = (),
    overwrite: bool = True,
) -> RecallChange | None:
    """Writes a ranker as a model folder with `README.md`, and as graphs.

    Args:
        ranker: a ranker of torch.
        folder: new, empty, or an earlier export, whose files are replaced and whose other graphs are removed.
        dtype: of the weights; the graphs are made from the rounded weights.
        run: the facts of its training, for the model card.
        earlier: the folder that the ranker was loaded from: its card, with the facts of its training, becomes the card,
            with its pictures and with this export's name, precision and graphs. May be `folder` itself.
        onnx: also write the ONNX graphs, each checked against torch.
        int8: also write the quantized graphs; implies `onnx`.
        examples: (context, label, candidates), on whose text the graphs are checked and R@1 is compared.
        overwrite: replace an earlier export.

    Returns:
        R@1 of torch and of the int8 graphs on the examples; None without `int8` or without examples.

    Raises:
        CheckpointError: the folder is a file or holds something else, or without `overwrite` a model; a weight is too
            large for float16, or a graph deviates from torch. Nothing is written then.
        ConfigError: a package for the graphs is not installed.
        InputError: the ranker is itself made of graphs, or an example cannot be used.
    """
    check_place("folder", folder)
    target = Path(folder)
    with reporting_write_errors(target, CheckpointError):
        if _has_model(target) and not holds_ranker(target):
            raise CheckpointError(f"{target}: holds an encoder, which is no export; give another folder")
    change = None
    with reporting_write_errors(target, CheckpointError), publishing_model(target, overwrite=overwrite) as staging:
        save_ranker(ranker, staging, dtype=dtype)
        graphs = ""
        if onnx or int8:
            graphs = "float32 and int8" if int8 else "float32"
            change = _write_graphs(staging, device=ranker.device.type, int8=int8, examples=examples)
        facts: dict[str, Any] = {"name": target.resolve().name, "dtype": dtype, "graphs": graphs}
        if earlier is None:
            card = write_model_card(ranker, run=run, **facts)
        else:
            card = update_card((earlier / README).read_text(encoding="utf-8"), ranker, **facts)
            copy_pictures(card, earlier, staging)
        (staging / README).write_text(card, encoding="utf-8")
    return change


def _write_graphs(folder: Path, *, device: str, int8: bool, examples: Sequence[Example]) -> RecallChange | None:
    """Writes the graphs of the model in this folder, from its stored, rounded weights."""
    from polyencoder.export.onnx import export_onnx, quantize_int8  # here: they need an extra

    ranker = Scorer(*load_folder(folder), device="cpu")
    contexts = (" ".join(example.turns) for example in examples[:_CHECKED])
    export_onnx(ranker, folder, check_texts=[text for text in contexts if text.strip()])
    if not int8:
        return None
    quantize_int8(folder)
    if not examples:
        return None
    quantized = Scorer(GraphEncoder.open(folder, precision="int8", device="cpu"))
    ranker = Scorer(ranker.model, ranker.text, device=device)
    return RecallChange(recall_at_1(ranker, examples), recall_at_1(quantized, examples))


def check_no_model(folder: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raises CheckpointError if the folder holds other files, ConfigError if it holds a model."""
    if _has_model(Path(folder)) and not overwrite:
        raise ConfigError(
            f"{folder}: holds a model already; give another folder, or overwrite it", argument="overwrite"
        )


def _has_model(target: Path) -> bool:
    """Whether a folder holds a model; CheckpointError if it holds other files."""
    if reason := explain_no_folder(target):
        raise CheckpointError(f"{target}: {reason}; give a folder to write the model in")
    finish_publication(target)
    if not target.exists() or not any(not path.name.startswith(".") for path in target.iterdir()):
        return False
    if not ((target / CONFIG).is_file() or (target / MODULE_CONFIG).is_file()):
        raise CheckpointError(f"{target}: has other files in it; give a new folder, or one with an earlier export")
    return True


def publishing_model(target: Path, *, overwrite: bool = True) -> AbstractContextManager[Path]:
    """`publishing` of a model; the card, graphs and calibration of an earlier model in the folder are removed.

    Without `overwrite` a model that another process has written meanwhile is unchanged: FileExistsError.
    """

    def check() -> None:
        if not overwrite and _has_model(target):
            raise build_exists_error(target)

    return publishing_folder(target, remove=BESIDE, check=check)
