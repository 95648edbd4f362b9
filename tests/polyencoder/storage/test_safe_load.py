"""Weights, and numbers of numpy's in checkpoints, read without numpy's own unpickling."""

from __future__ import annotations

import re
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pickle import UnpicklingError

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.serialization import get_safe_globals

from polyencoder.errors import CheckpointError
from polyencoder.storage.safe_load import explain_not_loaded, load_states, read_weights

NUMBERS = [np.float64(-1.5), np.float32(0.25), np.float16(2), np.int64(-7), np.uint8(200), np.bool_(True)]


def test_weights_and_what_is_wrong_with_their_file(tmp_path):
    path = tmp_path / "some.safetensors"
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(path))}: missing \("):
        read_weights(path)
    safetensors.torch.save_file({"w": torch.arange(3.0)}, path)
    assert read_weights(path)["w"].tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"^{re.escape(str(path))}: damaged or not a safetensors file \("):
        read_weights(path)


def test_the_reason_for_a_file_of_text_is_no_number(tmp_path):
    """torch's error is the byte at which its reader of pickles stops."""
    (tmp_path / "notes.txt").write_text("just some text\n")
    with pytest.raises(KeyError) as error:
        load_states(tmp_path / "notes.txt", mmap=False)
    assert explain_not_loaded(error.value) == "no pickle"


def saved(value, path):
    torch.save({"value": [value], "weight": torch.ones(3)}, path)
    return path


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: type(number).__name__)
@pytest.mark.parametrize("mmap", [True, False])
def test_a_number_is_pythons(number, mmap, tmp_path):
    before = set(get_safe_globals())
    states = load_states(saved(number, tmp_path / "file"), mmap=mmap)
    assert states["value"] == [number.item()]
    assert type(states["value"][0]) is type(number.item())
    assert torch.equal(states["weight"], torch.ones(3))
    assert set(get_safe_globals()) == before, "nothing more may be read anywhere else"


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_whichever_numpy_wrote_it_on_whichever_machine(module, order, tmp_path):
    written = saved(np.float64(1.5), tmp_path / "file")
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(tmp_path / "other", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("data.pkl"):
                data = re.sub(rb"numpy\._?core\.multiarray", module, data)
                data = data.replace(b"X\x01\x00\x00\x00<", b"X\x01\x00\x00\x00" + order.encode())
            new.writestr(name, data)
    expected = np.frombuffer(np.float64(1.5).tobytes(), f"{order}f8")[0]
    assert load_states(tmp_path / "other", mmap=False)["value"] == [expected]


@pytest.mark.parametrize("value", [np.str_("text"), np.array([1.0]), np.datetime64("2020-01-01"), np.dtype("O")])
def test_nothing_else_of_numpys_is_read(value, tmp_path):
    with pytest.raises(UnpicklingError):
        load_states(saved(value, tmp_path / "file"), mmap=False)


def test_code_never_runs(tmp_path, malicious):
    code, witness = malicious
    torch.save({"number": np.float64(1), "code": code}, tmp_path / "file")
    with pytest.raises(UnpicklingError):
        load_states(tmp_path / "file", mmap=False)
    assert not witness.exists()


def test_one_thread_does_not_take_away_what_another_needs(tmp_path):
    """What torch allows it allows to the whole process; eight threads begin and end at the same time."""
    path = saved(np.float64(1.5), tmp_path / "file")
    before, interval = set(get_safe_globals()), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns within a load
    try:
        with ThreadPoolExecutor(8) as threads:
            values = list(threads.map(lambda _: load_states(path, mmap=False)["value"], range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert values == [[1.5]] * 200
    assert set(get_safe_globals()) == before
