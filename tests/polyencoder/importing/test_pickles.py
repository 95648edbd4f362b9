"""What trainers keep beside weights: read without their packages, and with nothing run."""

from __future__ import annotations

import argparse
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.serialization import get_safe_globals

from polyencoder.errors import CheckpointError
from polyencoder.importing.pickles import get_tensors, read_checkpoint, to_plain


@pytest.fixture
def saved(tmp_path):
    """(states) -> the path of a file that torch saved."""

    def save(states):
        torch.save(states, tmp_path / "model.pt")
        return tmp_path / "model.pt"

    return save


@pytest.fixture
def foreign_class(monkeypatch):
    """(module, name) -> a class of a package that is not installed, which can be saved."""

    def make(module: str, name: str) -> type:
        cls = type(name, (), {"__module__": module})
        for i in range(1, module.count(".") + 2):
            part = ".".join(module.split(".")[:i])
            monkeypatch.setitem(sys.modules, part, sys.modules.get(part) or ModuleType(part))
        monkeypatch.setattr(sys.modules[module], name, cls, raising=False)
        return cls

    return make


def test_arrays_and_numbers_of_numpy_do_no_harm(saved):
    params = {"mask_scores": np.arange(3.0), "loss": np.float64(2), "n_layers": 2, "probs": torch.ones(2)}
    states = read_checkpoint(saved({"params": params}))
    assert states["params"]["n_layers"] == 2
    torch.testing.assert_close(states["params"]["probs"], torch.ones(2))


def test_old_names_of_numpys_modules(tmp_path, saved):
    """Files from numpy 1 say `numpy.core`."""
    path = tmp_path / "old.pt"
    torch.save({"loss": np.float64(2)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    path.write_bytes(data)
    assert b"numpy.core" in data
    assert set(read_checkpoint(path)) == {"loss"}


@pytest.mark.parametrize("module", ["fairseq.meters", "fairseq.logging.meters"])
def test_meters_of_fairseq_do_no_harm(saved, foreign_class, module):
    meter = foreign_class(module, "AverageMeter")()
    meter.val = 3
    assert set(read_checkpoint(saved({"extra_state": {"train_meters": meter}}))) == {"extra_state"}


def test_options_of_omegaconf(saved, foreign_class):
    """omegaconf 2 saves containers of nodes, each with a parent that leads back."""
    container, node = foreign_class("omegaconf.dictconfig", "DictConfig"), foreign_class("omegaconf.nodes", "AnyNode")
    metadata = foreign_class("omegaconf.base", "ContainerMetadata")
    model, cfg, heads = container(), container(), node()
    heads.__dict__.update(_val=12, _parent=model)
    model.__dict__.update(_content={"heads": heads}, _parent=cfg, _metadata=metadata())
    cfg.__dict__.update(_content={"model": model}, _parent=None, _metadata=metadata())
    assert to_plain(read_checkpoint(saved({"cfg": cfg}))["cfg"]) == {"model": {"heads": 12}}


def test_options_in_a_namespace(saved):
    options = argparse.Namespace(layers=2, inner=argparse.Namespace(names=["a"]))
    assert to_plain(read_checkpoint(saved({"args": options}))["args"]) == {"layers": 2, "inner": {"names": ["a"]}}


def test_any_other_class_is_named(saved, foreign_class):
    with pytest.raises(CheckpointError, match=r"model\.pt: holds someones.code.Model, which is neither") as caught:
        read_checkpoint(saved({"model": foreign_class("someones.code", "Model")()}))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_plain_pickle_does_not_run(tmp_path, malicious_pickle, protocol):
    data, witness = malicious_pickle(protocol)
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.pt: (holds|damaged)"):
        read_checkpoint(tmp_path / "model.pt")
    assert not witness.exists()


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04", bytes(range(256))])
def test_a_file_that_is_none_of_torchs(tmp_path, data):
    (tmp_path / "model.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.pt: damaged, or not a checkpoint of torch") as caught:
        read_checkpoint(tmp_path / "model.pt")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_bare_tensor(tmp_path, saved):
    with pytest.raises(CheckpointError, match="nothing.pt: no such checkpoint"):
        read_checkpoint(tmp_path / "nothing.pt")
    with pytest.raises(CheckpointError, match=r"model\.pt: holds Tensor; a checkpoint is a dictionary"):
        read_checkpoint(saved(torch.zeros(1)))


def test_nothing_stays_allowed(saved):
    before = set(get_safe_globals())
    read_checkpoint(saved({"a": 1}))
    assert set(get_safe_globals()) == before


def test_tensors_come_from_the_first_key_that_is_there():
    state = {"w": torch.zeros(1)}
    assert get_tensors({"encoder": state}, "model", "encoder") is state
    assert get_tensors({"encoder": {"w": 1}}, "encoder") == get_tensors({}, "encoder") == {}
