"""Uploads a ranker to the Hugging Face hub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi

from polyencoder.calibration import CalibratedRanker
from polyencoder.config import WeightDtype
from polyencoder.errors import CheckpointError, first_line
from polyencoder.export.card import model_card
from polyencoder.export.folder import README, save_ranker

__all__ = ["push"]


def push(
    ranker: CalibratedRanker,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    dtype: WeightDtype = "float32",
    readme: str | None = None,
) -> str:
    """Uploads a ranker with a model card, all files in one commit; see `Ranker.push_to_hub`."""
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_ranker(ranker, folder, dtype=dtype)  # first: what cannot be saved leaves no empty repository
        with _explaining(repo_id):
            url = api.create_repo(repo_id, private=private, exist_ok=True)  # completes a plain name
        card = model_card(ranker, name=url.repo_id, dtype=dtype) if readme is None else readme
        (Path(folder) / README).write_text(card, encoding="utf-8")
        with _explaining(repo_id):
            api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message="Upload a ranker")
    return str(url)


@contextmanager
def _explaining(repo_id: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # huggingface_hub passes on the errors of its HTTP library
        raise CheckpointError(f"{repo_id}: cannot be written to on the hub ({first_line(error)})") from error
