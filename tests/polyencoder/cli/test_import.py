"""`polyencoder import`: whose model a file is, which flags it takes, the message when that cannot be.

What the readers make of the files is tested beside them; here they stand aside, and say what they were asked for.
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.export.folder import export_folder
from polyencoder.importing.fairseq_encodings import Codes, Gpt2
from tests.commands import command_fails, run_command
from tests.model_folders import files_in

pytestmark = pytest.mark.slow

FAIRSEQ = {"args": Namespace(arch="roberta_base"), "model": {"a": torch.zeros(1)}}
NEW_FAIRSEQ = {"args": None, "cfg": {"model": {}}, "model": {"a": torch.zeros(1)}}
XLM = {"params": {"n_layers": 2}, "model": {"a": torch.zeros(1)}}
FAIRSEQ_FLAGS = ["--dictionary", "dict.txt", "--encoder-json", "encoder.json", "--vocab-bpe", "vocab.bpe"]


@pytest.fixture
def calls(monkeypatch, backbone_folder) -> list:
    """The requests to the readers. Each reader writes the folder of an encoder."""
    requests: list = []

    def reader(name: str, kind: str):
        def read(file: Path, *, out: Path, **options):
            requests.append((name, file.name, {key: value for key, value in options.items() if value}))
            shutil.copytree(backbone_folder(kind), out, dirs_exist_ok=True)

        return read

    monkeypatch.setattr("polyencoder.importing.fairseq.import_fairseq", reader("fairseq", "roberta"))
    return requests


@pytest.fixture
def run(tmp_path):
    """(states, *arguments) -> what `polyencoder import` prints of a checkpoint with these states."""

    def call(states: dict, *arguments: object) -> str:
        torch.save(states, tmp_path / "model.pt")
        return run_command("import", tmp_path / "model.pt", tmp_path / "out", *arguments).stdout

    return call


@pytest.mark.parametrize("states", [FAIRSEQ, NEW_FAIRSEQ])
def test_fairseq(run, calls, tmp_path, states):
    output = run(states, *FAIRSEQ_FLAGS)
    encoding = Gpt2(Path("encoder.json"), Path("vocab.bpe"))
    assert calls == [("fairseq", "model.pt", {"dictionary": Path("dict.txt"), "encoding": encoding})]
    first, second = output.splitlines()
    assert first == f"{tmp_path / 'out'}: an encoder that fairseq trained, roberta, 2 layers, 16 dimensions, 64 tokens"
    assert f"parlai train_model -m polyencoder --backbone {tmp_path / 'out'} " in second


def test_fairseqs_encoding_is_that_of_the_files(run, calls):
    run(FAIRSEQ, *FAIRSEQ_FLAGS[:2], "--codes", "codes")
    assert calls == [("fairseq", "model.pt", {"dictionary": Path("dict.txt"), "encoding": Codes(Path("codes"))})]


def fails(run, states, error: type[Exception], match: str, *arguments: object) -> None:
    with pytest.raises(error, match=match) as raised:
        run(states, *arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("states", "flags", "message"),
    [
        (FAIRSEQ, FAIRSEQ_FLAGS[2:], r"is a checkpoint of fairseq: give --dictionary too"),
        (
            FAIRSEQ,
            FAIRSEQ_FLAGS[:2],
            "reads dictionaries of GPT-2's BPE, .* and of fastBPE or subword-nmt, with --codes",
        ),
        (FAIRSEQ, FAIRSEQ_FLAGS[:4], "encoder_json is read only with vocab_bpe"),
        (FAIRSEQ, [*FAIRSEQ_FLAGS, "--codes", "c"], "codes is not read with encoder_json"),
    ],
)
def test_flags_that_are_missing_or_of_others(run, calls, tmp_path, states, flags, message):
    fails(run, states, ConfigError, message, *flags)
    assert not calls
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"model": {}, "optimizer": {}}, r"cannot be told whose model it is: .*model\.pt\.opt.*but: model, optimizer$"),
        ({"model": {}, "ranker_config": "{}"}, "a model file of ours: write it as a folder with `polyencoder export`"),
        (XLM, r"model\.pt: a checkpoint of XLM"),
    ],
)
def test_files_of_nobody_and_of_ours(run, calls, states, message):
    fails(run, states, CheckpointError, message)


def test_other_models_of_parlai(run, tmp_path):
    (tmp_path / "model.pt.opt").write_text('{"model": "transformer/generator"}')
    fails(run, {"model": {}}, CheckpointError, r"a 'transformer/generator' by its \.opt file")
    (tmp_path / "model.pt.opt").write_text('{"model": "polyencoder"}')
    fails(run, {"model": {}, "ranker_config": "{}"}, CheckpointError, "`polyencoder export`")


def test_files_that_are_not_there_or_not_safe(tmp_path, malicious_pickle):
    arguments = ["import", tmp_path / "model", tmp_path / "out"]
    command_fails(CheckpointError, "model: no such file", *arguments)
    data, witness = malicious_pickle(2)
    (tmp_path / "model").write_bytes(data)
    command_fails(CheckpointError, "model: ", *arguments)
    assert not witness.exists()


def test_a_model_that_is_there_is_not_written_over(run, calls, tmp_path, make_ranker):
    pytest.importorskip("onnxruntime")
    export_folder(make_ranker("bi"), tmp_path / "out", onnx=True)
    before = {name: (tmp_path / "out" / name).read_bytes() for name in files_in(tmp_path / "out")}
    message = "out: holds a model already; give another folder, or overwrite it"
    fails(run, FAIRSEQ, ConfigError, message, *FAIRSEQ_FLAGS)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files_in(tmp_path / "out")} == before
    assert not calls


def test_a_folder_that_appears_meanwhile_is_not_written_over(run, tmp_path, monkeypatch, make_ranker):
    """While the checkpoint is read: a ranker, or somebody's files."""
    for name, message in (("config.json", "another process has written it meanwhile"), ("notes", "has other files")):

        def read(file: Path, *, out: Path, name: str = name, **options):
            (out / "config.json").write_text("{}")
            (tmp_path / "out").mkdir(exist_ok=True)
            (tmp_path / "out" / name).write_text("theirs")

        monkeypatch.setattr("polyencoder.importing.fairseq.import_fairseq", read)
        fails(run, FAIRSEQ, CheckpointError, message, *FAIRSEQ_FLAGS)
        assert [(path.name, path.read_text()) for path in (tmp_path / "out").iterdir()] == [(name, "theirs")]
        shutil.rmtree(tmp_path / "out")

    def imported(file: Path):
        make_ranker("bi").save_pretrained(tmp_path / "out")
        ranker = make_ranker("poly")
        return ranker.model, ranker.text

    monkeypatch.setattr("polyencoder.importing.import_parlai", imported)
    monkeypatch.setattr("polyencoder.importing.is_parlai_model", lambda file: True)
    fails(run, FAIRSEQ, CheckpointError, "another process has written it meanwhile")
    assert '"bi"' in (tmp_path / "out" / "polyencoder.json").read_text()


def test_overwriting_leaves_nothing_of_the_old_model(run, calls, tmp_path, make_ranker, backbone_folder):
    pytest.importorskip("onnxruntime")
    export_folder(make_ranker("bi"), tmp_path / "out", onnx=True)
    (tmp_path / "out" / "calibration.json").write_text("{}")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run(FAIRSEQ, *FAIRSEQ_FLAGS, "--overwrite")
    expected = {path.name for path in Path(backbone_folder("roberta")).iterdir()} | {"notes.txt"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "out"]


def test_a_folder_of_other_things_is_left_alone(run, calls, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    message = "out: has other files in it; give a new folder"
    fails(run, FAIRSEQ, CheckpointError, message, *FAIRSEQ_FLAGS, "--overwrite")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]
