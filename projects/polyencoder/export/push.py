"""Uploads a ranker to the Hugging Face hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from polyencoder.calibration import CalibratedRanker
from polyencoder.checkpoint import read_digests
from polyencoder.config import WeightDtype
from polyencoder.errors import CheckpointError, get_first_line
from polyencoder.export.card import copy_pictures, update_card, write_model_card
from polyencoder.export.folder import BESIDE, README, save_ranker
from polyencoder.modeling.layout import is_layout_file
from polyencoder.storage.digests import compute_weights_fingerprint
from polyencoder.storage.names import WEIGHTS


def push(
    ranker: CalibratedRanker,
    repo_id: str,
    *,
    source: Path | None = None,
    private: bool | None = None,
    token: str | None = None,
    dtype: WeightDtype = "float32",
    readme: str | None = None,
) -> str:
    """Uploads a ranker with a model card (its folder's, `source`) in one commit; see `Ranker.push_to_hub`.

    Not by `upload_folder`, which may make several: others would load a mixture.
    """
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_ranker(ranker, folder, dtype=dtype)  # first: what cannot be saved leaves no empty repository
        with _explaining_errors(repo_id):
            url = api.create_repo(repo_id, private=private, exist_ok=True)  # completes a plain name
        facts: dict[str, Any] = {"name": url.repo_id, "dtype": dtype}
        earlier = _read_earlier_card(ranker, source)
        card = update_card(earlier, ranker, **facts) if earlier else write_model_card(ranker, **facts)
        (Path(folder) / README).write_text(card if readme is None else readme, encoding="utf-8")
        if earlier and source is not None:
            copy_pictures(card, source, Path(folder))
        with _explaining_errors(repo_id):
            new = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*") if path.is_file()}
            stale = [name for name in api.list_repo_files(url.repo_id) if name in BESIDE or is_layout_file(name)]
            operations: list[Any] = [CommitOperationDelete(name) for name in stale if name not in new]
            operations += [CommitOperationAdd(name, path) for name, path in new.items()]
            api.create_commit(url.repo_id, operations, commit_message="Upload a ranker")
    return str(url)


def _read_earlier_card(ranker: CalibratedRanker, source: Path | None) -> str | None:
    """The card of the folder that a ranker was loaded from; None if its weights have changed since."""
    if source is None or not (source / README).is_file() or not (source / WEIGHTS).is_file():
        return None
    stored = read_digests(source / WEIGHTS).get(WEIGHTS)
    if stored != compute_weights_fingerprint(ranker.model.merge_adapters().get_state_dict_to_save(torch.float32)):
        return None
    return (source / README).read_text(encoding="utf-8")


@contextmanager
def _explaining_errors(repo_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # huggingface_hub passes on the errors of its HTTP library
        raise CheckpointError(f"{repo_id}: cannot be written to on the hub ({get_first_line(error)})") from error
