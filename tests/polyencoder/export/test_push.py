"""Uploads to the Hugging Face hub: what arrives there, and what is refused before a repository is made."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from huggingface_hub import CommitOperationDelete, HfApi, ModelCard, RepoUrl
from huggingface_hub.utils import filter_repo_objects

from polyencoder.errors import CheckpointError, InputError
from polyencoder.export.folder import export_folder, save_ranker
from polyencoder.export.training_run import TrainingRun
from polyencoder.hub import resolve
from polyencoder.ranker import Ranker
from tests.model_folders import files_in, files_of

pytestmark = pytest.mark.slow


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The hub's side of an upload: the calls that were made, and a folder with the repository's files."""
    calls = []
    repository = tmp_path / "uploaded"

    def create_repo(self, repo_id, **options):
        calls.append((self.token, repo_id, options))
        return RepoUrl(f"https://huggingface.co/me/{repo_id.rpartition('/')[2]}")

    def list_repo_files(self, repo_id):
        return files_in(repository)

    def create_commit(self, repo_id, operations, **_):
        calls.append((self.token, repo_id))
        for operation in operations:
            path = repository / operation.path_in_repo
            if isinstance(operation, CommitOperationDelete):
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(operation.path_or_fileobj, path)

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "list_repo_files", list_repo_files)
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    return calls


def test_push_to_hub(make_ranker, hub, no_network, tmp_path, sentences):
    ranker = make_ranker("poly")
    url = ranker.push_to_hub("ranker", private=True, token="secret", dtype="bfloat16")
    assert url == "https://huggingface.co/me/ranker"
    assert hub == [("secret", "ranker", {"private": True, "exist_ok": True}), ("secret", "me/ranker")]
    uploaded = tmp_path / "uploaded"
    assert files_in(uploaded) == files_of(ranker.model, "README.md")
    card = (uploaded / "README.md").read_text()
    assert 'Ranker.from_pretrained("me/ranker")' in card
    assert "stored in bfloat16" in card
    save_ranker(ranker, tmp_path / "saved", dtype="bfloat16")
    folders = (tmp_path / "saved", uploaded)
    np.testing.assert_array_equal(*(Ranker.from_pretrained(folder).score(["hello"], sentences) for folder in folders))


def test_push_to_hub_with_a_card_of_ones_own(make_ranker, hub, tmp_path):
    make_ranker("bi").push_to_hub("me/ranker", readme="# Mine\n")
    assert (tmp_path / "uploaded" / "README.md").read_text() == "# Mine\n"


def test_the_card_of_the_folder_is_kept_while_the_weights_are_its_own(make_ranker, hub, tmp_path):
    run = TrainingRun({"train": "hf:me/talks:train"}, {"valid": {"R20@1": 0.75}}, base_model="you/encoder")
    export_folder(make_ranker("bi"), tmp_path / "mine", run=run)
    ranker = Ranker.from_pretrained(tmp_path / "mine", device="cpu")
    for changed in (False, True):
        if changed:
            next(ranker.model.parameters()).data.add_(0.1)
        ranker.push_to_hub("ranker", dtype="bfloat16")
        card = ModelCard.load(tmp_path / "uploaded" / "README.md")
        expected = (None, None) if changed else ("you/encoder", ["me/talks"])
        assert (card.data.base_model, card.data.datasets) == expected
        if not changed:
            assert card.data.model_name == "me/ranker"
            (result,) = card.data.eval_results
            assert (result.dataset_name, result.metric_name, result.metric_value) == ("me/talks", "R20@1", 0.75)
        assert "stored in bfloat16" in card.text
        shutil.rmtree(tmp_path / "uploaded")


def test_the_card_of_a_model_of_the_hub_is_kept(make_ranker, hub, monkeypatch, tmp_path):
    def download(name, *, allow_patterns, **_):
        for file in filter_repo_objects(files_in(tmp_path / "uploaded"), allow_patterns=allow_patterns):
            (tmp_path / "cache" / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tmp_path / "uploaded" / file, tmp_path / "cache" / file)
        return str(tmp_path / "cache")

    monkeypatch.setattr(resolve, "snapshot_download", download)
    monkeypatch.setattr(resolve, "explain_unreachable_hub", lambda: None)
    export_folder(make_ranker("bi"), tmp_path / "uploaded", run=TrainingRun(base_model="you/encoder"))
    Ranker.from_pretrained("me/ranker", device="cpu").push_to_hub("me/copy", dtype="bfloat16")
    card = ModelCard.load(tmp_path / "uploaded" / "README.md")
    assert card.data.base_model == "you/encoder"
    assert "stored in bfloat16" in card.text


def test_nothing_of_an_earlier_model_stays(make_ranker, hub, tmp_path):
    """Such as graphs that somebody has uploaded: `backend="onnx"` would run them, and reads no weights of torch."""
    pytest.importorskip("onnxruntime")
    export_folder(make_ranker("bi"), tmp_path / "uploaded", onnx=True)
    (tmp_path / "uploaded" / "notes.txt").write_text("mine")
    ranker = make_ranker("bi", seed=1, share_encoders=True)
    ranker.push_to_hub("me/ranker")
    assert files_in(tmp_path / "uploaded") == files_of(ranker.model, "README.md", "notes.txt")


@pytest.mark.parametrize("step", ["create_repo", "create_commit"])
def test_a_hub_that_refuses(make_ranker, hub, monkeypatch, step):
    def refuse(self, *args, **options):
        raise RuntimeError("no route to host\nsecond line")

    monkeypatch.setattr(HfApi, step, refuse)
    with pytest.raises(CheckpointError, match=r"\(no route to host\)$"):
        make_ranker("bi").push_to_hub("me/ranker")


def test_what_cannot_be_saved_leaves_no_repository(make_ranker, hub, tmp_path):
    pytest.importorskip("onnxruntime")
    export_folder(make_ranker("bi"), tmp_path / "out", onnx=True)
    with pytest.raises(InputError, match="no torch weights to save"):
        Ranker.from_pretrained(tmp_path / "out", backend="onnx", device="cpu").push_to_hub("me/ranker")
    assert hub == []
