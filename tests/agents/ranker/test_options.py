"""Options from elsewhere in ParlAI's own commands: what is in them does not run where a class of ours comes first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from parlai.agents.ranker.launch import launch
from parlai.agents.ranker.options import select_explicit_flags
from parlai.core.opt import Opt
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.training.process_group import VARIABLES

EVIL = "some_module_of_others"


@pytest.fixture
def evil(malicious_pickle, tmp_path):
    """(its name) -> the option file of that name holds a pickle, and what shows that it ran."""

    def make(name: str) -> Path:
        content, witness = malicious_pickle(4)
        (tmp_path / name).write_bytes(content)
        return witness

    return make


@pytest.fixture
def module_of_others(tmp_path, monkeypatch):
    """A module that can be imported; the path of a folder that shows that it was."""
    witness = tmp_path / "it-was-imported"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / f"{EVIL}.py").write_text(
        f"import os\nos.makedirs({str(witness)!r})\n"
        "from parlai.agents.polyencoder.polyencoder import PolyencoderAgent\n"
        "from parlai.tasks.selection.agents import SampleTeacher\nclass DefaultTeacher(SampleTeacher): pass\n"
    )
    monkeypatch.syspath_prepend(folder)
    return witness


@pytest.mark.parametrize("content", [{"batchsize": 4}, None])
def test_an_evaluation_after_training_needs_a_datatype(content, task, tmp_path):
    """ParlAI would notice after it."""
    extra = tmp_path / "extra.opt"
    if content is not None:
        extra.write_text(json.dumps(content))
    training = {"model": "biencoder", "model_file": str(tmp_path / "new"), "final_extra_opt": str(extra)}
    with pytest.raises(ConfigError, match="--final-extra-opt .*extra.opt: there is no such file with a datatype in it"):
        TrainModel.main(**training, **task)
    assert not list(tmp_path.glob("new*"))


@pytest.mark.parametrize(
    ("name", "flag"), [("model.opt", "model_file"), ("model.checkpoint.opt", "model_file"), ("model.opt", "init_model")]
)
def test_a_pickle_never_runs(name, flag, evil, task, tmp_path):
    witness = evil(name)
    (tmp_path / "model.checkpoint").touch()
    training = {"model_file": str(tmp_path / "new"), flag: str(tmp_path / "model"), "model": "biencoder"}
    with pytest.raises(CheckpointError, match=rf"{name}: not valid JSON"):
        TrainModel.main(**training, **task)
    assert not witness.exists()


@pytest.mark.parametrize("script", [EvalModel, TrainModel, Interactive])
def test_a_task_of_ours_comes_first_too(script, evil, tmp_path):
    witness = evil("model.opt")
    with pytest.raises(CheckpointError, match=r"model\.opt: not valid JSON"):
        script.main(task="selection:sample", model_file=str(tmp_path / "model"))
    assert not witness.exists()


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("model.opt", ["-mf", "{0}/model"]),
        ("model.checkpoint.opt", ["-mf", "{0}/model"]),
        ("model.opt", ["--init-model", "{0}/model"]),
        ("some.opt", ["-o", "{0}/some.opt"]),
        ("some.opt", ["--init-opt", "fine,{0}/some.opt"]),
    ],
)
def test_the_launcher_needs_neither(name, flags, evil, tmp_path, monkeypatch):
    witness = evil(name)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, {"MASTER_ADDR": "localhost", "WORLD_SIZE": "1"}.get(variable, "0"))
    with pytest.raises(CheckpointError, match=rf"{name}: not valid JSON"):
        launch(["train_model", "-t", "convai2", *(flag.format(tmp_path) for flag in flags)])
    assert not witness.exists()


@pytest.mark.parametrize("changes", [{"task": f"{EVIL}.sub:Teacher"}, {"dict_class": f"{EVIL}:Dictionary"}])
@pytest.mark.parametrize("named", [{}, {"model": "biencoder"}])
def test_code_of_others(changes, named, copy_of, edit_json, task, tmp_path):
    path = copy_of("biencoder")
    edit_json(Path(f"{path}.opt"), **changes)
    with pytest.raises(CheckpointError, match="code outside ParlAI and this project"):
        EvalModel.main(model_file=str(path), **named, **task)


@pytest.mark.slow
def test_another_agent_in_the_options(copy_of, edit_json, task, module_of_others):
    path = copy_of("polyencoder")
    edit_json(Path(f"{path}.opt"), model=f"{EVIL}:PolyencoderAgent")
    with pytest.raises(CheckpointError, match="code outside ParlAI and this project"):
        EvalModel.main(model="polyencoder", model_file=str(path), **task)
    assert not module_of_others.exists()


def test_presets_name_no_classes(copy_of, task, module_of_others, tmp_path):
    path = copy_of("polyencoder")
    (tmp_path / "some.opt").write_text(json.dumps({"dict_class": f"{EVIL}:Dictionary"}))
    with pytest.raises(CheckpointError, match="code outside ParlAI and this project"):
        EvalModel.main(model="polyencoder", model_file=str(path), init_opt=str(tmp_path / "some.opt"), **task)
    assert not module_of_others.exists()


def test_what_a_models_option_file_has_was_not_given(tmp_path):
    for name, options in (
        ("model", {"starttime": "Nov27_20-00", "batchsize": 4, "dropout": 0.1}),
        ("mine", {"clip": 2}),
    ):
        (tmp_path / f"{name}.opt").write_text(json.dumps(options))
    files = {"init_opt": f"{tmp_path}/model.opt,{tmp_path}/mine.opt"}
    override = files | {"batchsize": 8, "dropout": 0.1, "clip": 2, "learningrate": None}
    assert select_explicit_flags(Opt(override=override, **files)) == files | {"batchsize": 8, "clip": 2}
    later = {"batchsize": 4}  # of a command with the model that this training made
    assert select_explicit_flags(Opt(override=later, **files)) == later


@pytest.mark.slow
def test_another_training_with_a_models_options(copy_of, tmp_path):
    again = {"init_opt": f"{copy_of('biencoder')}.opt", "allow_missing_init_opts": True}
    TrainModel.main(model_file=str(tmp_path / "new"), dict_file=str(tmp_path / "new.dict"), **again)
    assert json.loads((tmp_path / "new.opt").read_text())["model"] == "biencoder"


@pytest.mark.slow
def test_a_task_of_others_that_the_command_line_names(copy_of, edit_json, module_of_others, tmp_path):
    """A model that was trained on somebody's own task can be used with it, and not without."""
    path = copy_of("biencoder")
    package = tmp_path / "modules" / "package"
    package.mkdir()
    shutil.move(tmp_path / "modules" / f"{EVIL}.py", package / "agents.py")
    task = "package.agents:DefaultTeacher"
    edit_json(Path(f"{path}.opt"), task=task)
    with pytest.raises(CheckpointError, match=f"name {task} yourself"):
        Interactive.main(model_file=str(path))
    assert not module_of_others.exists()
    options = {"datatype": "valid", "num_examples": 5, "datapath": str(tmp_path), "loglevel": "error"}
    EvalModel.main(model_file=str(path), task=task, **options)
    assert module_of_others.exists()
