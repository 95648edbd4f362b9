"""The command of each model of the zoo, run with a small model of its kind in the place of the published one."""

from __future__ import annotations

import shutil

import pytest

from polyencoder.hub.zoo import read_zoo_models
from tests.docs.running import Runner
from tests.docs.snippets import Command
from tests.parameters import mostly_long
from tests.task_files import make_datapath

pytestmark = pytest.mark.slow

MAKE = (
    "parlai train_model -m {kind}encoder -t selection:convai2 --candidates inline --batchsize 4 --max-train-steps 1 "
    "--embedding-size 32 --ffn-size 64 --n-layers 1 --n-heads 2 -mf {kind}/model"
)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """Runs commands where the data is small and the zoo's models are there already, none of them fetched."""
    folder = tmp_path_factory.mktemp("zoo")
    make_datapath(folder / "DATA")
    runner = Runner(folder, {})
    for kind in {model.architecture for model in read_zoo_models().values()}:
        runner.prepare(Command(0, tuple(MAKE.format(kind=kind).split())))
    for model in read_zoo_models().values():
        shutil.copytree(folder / model.architecture, folder / "DATA" / "models" / "polyencoder" / model.name)
    return runner


QUICK = ("reddit_bi", "reddit_cross", "convai2_poly", "minilm")  # of each kind and command
NAMES = [*QUICK, *(name for name in read_zoo_models() if name not in QUICK)]


@mostly_long("name", NAMES, quick=len(QUICK))
def test_the_command_of_a_model_learns_or_evaluates(name, runner):
    model = read_zoo_models()[name]
    command = model.command.replace("FILE", f"trained/{model.name}")
    runner.run(Command(0, tuple(command.split())))
