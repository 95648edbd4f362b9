"""Downloads, unpacks and converts a model of the zoo once.

Under `--datapath`, `models/pretrained_transformers/` gets ParlAI's own models, as `zoo:pretrained_transformers/`
expects them, and `models/polyencoder/NAME/` the converted one: `model` in it for ParlAI's commands, the folder itself
for `Ranker.from_pretrained`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
from filelock import FileLock, Timeout
from parlai.core.agents import create_agent
from parlai.core.build_data import built, get_model_dir, mark_done
from parlai.core.params import ParlaiParser
from parlai.zoo.polyencoder.fetch import fetch
from parlai.zoo.polyencoder.unpack import unpack

from polyencoder.checkpoint import save_folder
from polyencoder.errors import CheckpointError
from polyencoder.hub.zoo import ModelSource, ZooModel, read_zoo_models
from polyencoder.importing.options import check_options
from polyencoder.storage.files import move_files

THEIRS, THEIR_VERSION = "pretrained_transformers", "v3.0"  # ParlAI's folder and mark for the same archive
MODEL = "model"


def prepare(model: ZooModel, datapath: str) -> None:
    """Creates the folder of a model of the zoo unless it exists; one of several processes does so, the others wait.

    Raises:
        CheckpointError: it cannot be downloaded, or the download is invalid.
    """
    folder = Path(get_model_dir(datapath), "polyencoder", model.name)
    if (folder / MODEL).is_file():
        return
    with _locked(datapath):
        if not (folder / MODEL).is_file():
            _make(model, folder, datapath=datapath)


def prepare_parlai_models(datapath: str) -> None:
    """Creates the folder of `zoo:pretrained_transformers/`, ParlAI's own models, unless it exists.

    Raises:
        CheckpointError: they cannot be downloaded, or the download is invalid.
    """
    models = Path(get_model_dir(datapath))
    if not built(str(models / THEIRS), THEIR_VERSION):
        with _locked(datapath):
            _download_archive(
                next(model.source for model in read_zoo_models().values() if not model.source.is_hub), models
            )


@contextmanager
def _locked(datapath: str) -> Iterator[None]:
    """Holds the lock of all models of the zoo, which share archives."""
    folder = Path(get_model_dir(datapath), "polyencoder")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logging.info(f"{folder}: waiting for another process that prepares a model of the zoo")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(model: ZooModel, folder: Path, *, datapath: str) -> None:
    if model.source.is_hub:
        source: dict[str, Any] = {"backbone": model.location, "reduction_type": model.reduction}
    else:
        file = _download_archive(model.source, Path(get_model_dir(datapath))) / model.location
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing, although {model.source.url} was unpacked there")
        check_options(f"{file}.opt")  # ParlAI may have unpacked it
        # no settings of its training on GPUs
        source = {"model_file": str(file), "fp16": False, "data_parallel": False, "model_parallel": False}
    logging.info(f"converting {model.location} to {folder}")
    _convert(folder, datapath=datapath, model=f"{model.architecture}encoder", **source)


def _download_archive(source: ModelSource, models: Path) -> Path:
    """The folder of ParlAI's own models, downloaded unless ParlAI or an earlier run did so."""
    folder = models / THEIRS
    if not built(str(folder), THEIR_VERSION):
        archive = models / "polyencoder" / source.url.rpartition("/")[2]
        if not archive.is_file():
            try:
                fetch(source.url, archive, sha256=source.sha256)
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error}. Models unpacked into {folder} by hand are used if it has a file .built with "
                    f"{THEIR_VERSION} as its second line"
                ) from error
        with _publishing_folder(folder, last=".built") as temporary:
            try:
                unpack(archive, temporary)
                for options in temporary.rglob("*.opt"):
                    check_options(options)
            except CheckpointError:
                archive.unlink()  # or each further run would fail here
                raise
            except OSError as error:
                raise CheckpointError(
                    f"{archive}: cannot be unpacked beside {folder} ({error.strerror or error}); free some space and "
                    "run the same command again"
                ) from error
            mark_done(str(temporary), THEIR_VERSION)
        archive.unlink()
    return folder


def _convert(folder: Path, **options: Any) -> None:
    """Builds an agent from ParlAI's options and writes its ranker, as after training."""
    agent = create_agent(ParlaiParser(True, True).parse_kwargs(datatype="valid", **options))
    with _publishing_folder(folder, last=MODEL) as temporary:
        agent.opt.update(model_file=str(folder / MODEL), dict_file=str(folder / f"{MODEL}.dict"))
        agent.save(str(temporary / MODEL))
        save_folder(temporary, agent.ranker, agent.dict.text)


@contextmanager
def _publishing_folder(folder: Path, *, last: str) -> Iterator[Path]:
    """Yields an empty folder, whose files move to `folder` if the block succeeds; the file `last` moves last."""
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # of a killed run
    temporary.mkdir(parents=True)
    try:
        yield temporary
        move_files(temporary, folder, last=last)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
