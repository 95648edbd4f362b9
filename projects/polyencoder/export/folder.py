"""Exports a trained ranker as a folder: weights, configuration, tokenizer, model card, optionally ONNX graphs.

Everything is written to a temporary folder beside the target, and renamed when it is complete and checked.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from polyencoder.calibration import CalibratedRanker, calibration_file
from polyencoder.checkpoint import load_folder, save_folder
from polyencoder.checks import check_place
from polyencoder.config import RankerConfig, WeightDtype
from polyencoder.data.example import Example
from polyencoder.encoding.fingerprint import model_fingerprint
from polyencoder.encoding.scorer import Scorer
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.evaluation import recall_at_1
from polyencoder.export.card import TrainingRun, model_card, updated_card
from polyencoder.export.onnx.files import DESCRIPTION, GRAPHS
from polyencoder.pictures import CURVE, RELIABILITY
from polyencoder.storage.files import (
    ABANDONED,
    alone_in,
    atomic_write,
    fsync,
    reporting_write_errors,
    why_no_folder,
    written_meanwhile,
)
from polyencoder.storage.names import CALIBRATION, CALIBRATION_INT8, CONFIG, TOKENIZER, WEIGHTS

README = "README.md"
_OF_THE_MODEL = (CALIBRATION, CALIBRATION_INT8, README, CURVE, RELIABILITY, "tokenizer_config.json", *GRAPHS)
EXPORTED = (CONFIG, WEIGHTS, TOKENIZER, DESCRIPTION, *_OF_THE_MODEL)
"""The names of the files that an export writes or removes."""
_CHECKED = 8  # contexts of the user's examples on which graphs are compared with torch


def save_ranker(ranker: CalibratedRanker, folder: str | os.PathLike[str], *, dtype: WeightDtype = "float32") -> None:
    """Writes `config.json`, `model.safetensors`, `tokenizer.json` and any calibration; see `Ranker.save_pretrained`."""
    check_place("folder", folder)
    save_folder(folder, ranker.model, ranker.text, dtype=dtype)
    (Path(folder) / CALIBRATION_INT8).unlink(missing_ok=True)  # of graphs of the model that was there
    if ranker.calibration is None:
        calibration_file(folder).unlink(missing_ok=True)
    else:
        fingerprint = model_fingerprint(ranker.model, ranker.text, dtype=dtype)
        ranker.calibration.of_model(fingerprint).save(folder)


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
    earlier_card: str | None = None,
    onnx: bool = False,
    int8: bool = False,
    examples: Sequence[Example] = (),
    overwrite: bool = True,
) -> RecallChange | None:
    """Writes a ranker as `config.json`, `model.safetensors`, `tokenizer.json` and `README.md`, and as graphs.

    Args:
        ranker: a ranker of torch.
        folder: where; new, empty, or an earlier export, whose files are replaced and whose other graphs go.
        dtype: of the weights; the graphs are made from the rounded weights.
        run: the facts of its training, for the model card.
        earlier_card: that of the folder which the ranker was loaded from, which knows of its training: it becomes the
            card, with this export's name, precision and graphs.
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
        InputError: the ranker is itself one of graphs, or an example cannot be used.
    """
    check_place("folder", folder)
    target = Path(folder)
    with reporting_write_errors(target, CheckpointError):
        if _holds_model(target):  # which must be a ranker
            RankerConfig.from_json((target / CONFIG).read_bytes(), origin=str(target / CONFIG))
    change = None
    with reporting_write_errors(target, CheckpointError), placing(target, overwrite=overwrite) as made:
        save_ranker(ranker, made, dtype=dtype)
        graphs = ""
        if onnx or int8:
            graphs = "float32 and int8" if int8 else "float32"
            change = _write_graphs(made, device=ranker.device.type, int8=int8, examples=examples)
        facts = {"name": target.resolve().name, "dtype": dtype, "graphs": graphs}
        card = updated_card(earlier_card, ranker, **facts) if earlier_card else model_card(ranker, run=run, **facts)
        (made / README).write_text(card, encoding="utf-8")
    return change


def _write_graphs(folder: Path, *, device: str, int8: bool, examples: Sequence[Example]) -> RecallChange | None:
    """Writes the graphs of the model in this folder, from its stored, rounded weights."""
    from polyencoder.export.onnx import export_onnx, load_onnx, quantize_int8  # an extra, which few need

    ranker = Scorer(*load_folder(folder), device="cpu")
    contexts = (" ".join(example.turns) for example in examples[:_CHECKED])
    export_onnx(ranker, folder, check_texts=[text for text in contexts if text.strip()])
    if not int8:
        return None
    quantize_int8(folder)
    if not examples:
        return None
    quantized = Scorer(*load_onnx(folder, precision="int8", device="cpu"), device="cpu")
    ranker = Scorer(ranker.model, ranker.text, device=device)
    return RecallChange(recall_at_1(ranker, examples), recall_at_1(quantized, examples))


def check_no_model(folder: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raises CheckpointError if the folder holds other files, ConfigError if it holds a model."""
    if _holds_model(Path(folder)) and not overwrite:
        raise ConfigError(
            f"{folder}: holds a model already; give another folder, or overwrite it", argument="overwrite"
        )


def _move(made: Path, target: Path, *, overwrite: bool) -> None:
    """Moves the files of a model to their places, and removes those of the model that was there."""
    if not overwrite and _holds_model(target):
        raise written_meanwhile(target)
    names = {path.name for path in made.iterdir()}
    for name in {*_OF_THE_MODEL} - names:
        (target / name).unlink(missing_ok=True)
    (target / DESCRIPTION).unlink(missing_ok=True)  # until all is in place there are no graphs
    order = {DESCRIPTION: 0, CONFIG: 1, TOKENIZER: 2, WEIGHTS: 4}  # reversed: from the weights on, it is the new model
    with ExitStack() as written:
        for name in sorted(names, key=lambda name: order.get(name, 3)):
            temporary = written.enter_context(atomic_write(target / name, overwrite=overwrite))
            os.replace(made / name, temporary)
            fsync(temporary)  # before the weights have their name


def _holds_model(target: Path) -> bool:
    """Whether a folder holds a model; CheckpointError if it holds other files."""
    if reason := why_no_folder(target):
        raise CheckpointError(f"{target}: {reason}; give a folder to write the model in")
    if not target.exists() or not any(not path.name.startswith(".") for path in target.iterdir()):
        return False
    if not (target / CONFIG).is_file():
        raise CheckpointError(f"{target}: has other files in it; give a new folder, or one with an earlier export")
    return True


@contextmanager
def placing(target: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yields a temporary folder whose files are moved to `target` if the block succeeds.

    A kill leaves the old model or the new one, as in `save_folder`, perhaps without graphs. The other files of a model
    that was there, its card, graphs and calibration, are removed. Without `overwrite` a model that another process has
    written meanwhile is unchanged: FileExistsError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for old in target.parent.glob(f".{glob.escape(target.name)}.????????.part"):  # which killed exports left
        with suppress(OSError):
            if old.is_dir() and time.time() - old.stat().st_mtime >= ABANDONED:
                shutil.rmtree(old)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}.", suffix=".part", dir=target.parent, ignore_cleanup_errors=True
    ) as made:
        yield Path(made)
        target.mkdir(exist_ok=True)
        with alone_in(target):
            _move(Path(made), target, overwrite=overwrite)
