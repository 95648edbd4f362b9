"""Training with a frozen candidate side: an index from before training is searched by the trained model, unchanged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.training import TrainSettings, train_ranker
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import THINGS

RESPONSES = [f"my {thing} is fine ." for thing in THINGS]


def with_frozen_candidates(folder: Path, **changes) -> TrainSettings:
    """The settings of a run over a file in this folder, which this writes."""
    rows = [{"context": ["hi", f"your {thing} ?"], "response": f"my {thing} is fine ."} for thing in THINGS]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    usual = {name: str(folder / "train.jsonl") for name in ("train", "valid")} | {"out": str(folder / "out")}
    usual |= {"text_truncate": 24, "label_truncate": 16, "batch_size": 5, "num_negatives": 4, "warmup_updates": 0}
    return TrainSettings(**usual | {"fine_tuned": "all", "freeze_candidates": True, "device": "cpu"} | changes)


@pytest.fixture
def make_run(tmp_path, backbone_folder):
    """(architecture) -> a ranker around a new encoder, and the settings that train one like it."""

    def make_run(architecture: str, **changes) -> tuple[Ranker, TrainSettings]:
        backbone = str(backbone_folder("bert"))
        start = {"backbone": backbone, "architecture": architecture, "reduction": "mean"}
        settings = with_frozen_candidates(tmp_path, **start | {"epochs": 3.0, "learning_rate": 0.01} | changes)
        text = {"text_truncate": 24, "label_truncate": 16}
        return Ranker.from_backbone(backbone, "bi", device="cpu", reduction="mean", text=text), settings

    return make_run


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
@mostly_long(
    "changes",
    [
        {"architecture": "bi", "grad_cache": 2},
        {"architecture": "poly", "n_codes": 3, "hard_negatives": 2, "hard_negatives_every": 2},
    ],
    ids=lambda changes: changes["architecture"],
    quick=1,
)
def test_an_index_from_before_training_is_searched_unchanged(make_run, tmp_path, changes):
    ranker, settings = make_run(**changes, candidates_of=str(tmp_path / "index"))
    ranker.index(RESPONSES, tmp_path / "index").close()
    before = digests(tmp_path / "index")
    report = train_ranker(settings)
    assert report.best > 0
    trained = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    assert torch.equal(
        torch.as_tensor(trained.encode_candidates(RESPONSES)), torch.as_tensor(ranker.encode_candidates(RESPONSES))
    )
    context = ["hi", "your ski ?"]
    ours, theirs = (each.encode_contexts([context]).vectors for each in (trained, ranker))
    assert not np.array_equal(ours, theirs)
    hits = trained.search(context, tmp_path / "index", top_k=4)
    expected = trained.rank(context, RESPONSES)[:4]
    assert [hit.text for hit in hits] == [reply.text for reply in expected]
    assert digests(tmp_path / "index") == before


def test_another_models_index_is_an_error_before_training(make_run, tmp_path, make_ranker):
    make_ranker("bi").index(RESPONSES, tmp_path / "index").close()
    with pytest.raises(CheckpointError, match="made by another model"):
        train_ranker(make_run("poly", candidates_of=str(tmp_path / "index"))[1])
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "cross"}, "freeze_candidates"),
        ({"architecture": "bi", "freeze_candidates": False, "candidates_of": "x"}, "candidates_of is read only with"),
        ({"architecture": "bi", "output_scaling": "auto"}, "output_scaling auto changes the vectors of candidates"),
        ({"architecture": "bi", "share_encoders": True}, "nothing to train"),
    ],
)
def test_what_cannot_be_frozen(make_run, changes, message):
    with pytest.raises(ConfigError, match=message):
        train_ranker(make_run(**changes)[1])
