"""The commands of ParlAI's `projects/polyencoder/README.md`, copied beside this file: they run, our page quotes them.

They run with small models and small data. Different are the models (`-m polyencoder` for `-m transformer/polyencoder`),
the zoo's pre-trained ones and their sizes, `--num-epochs`, and the paths of files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection
from pathlib import Path

import pytest
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainModel

from polyencoder.checkpoint import read_model_file
from polyencoder.errors import InputError
from tests.parameters import mostly_long
from tests.task_files import dialogue, make_datapath, write

pytestmark = pytest.mark.slow

PAGE = Path(__file__).with_name("parlai_readme.txt")
HERE = Path(__file__).parents[2] / "docs" / "coming-from" / "parlai.md"
MODELS = ("biencoder", "polyencoder", "crossencoder")
SMALL = {"--n-layers": "2", "--n-heads": "2", "--ffn-size": "64", "--n-positions": "512", "--embedding-size": "32"}
OURS = {"--model", "-m", "--init-model", "-t", "--model-file", "-mf", "--jsonfile-datapath"}
OURS |= {"--jsonfile-datatype-extension", "--eval-candidates"}
"""Flags in which our page differs from theirs, and says so."""


def flags_of(command: str) -> dict[str, str]:
    """The flags of a command and their values."""
    words = command.replace("\\\n", " ").split()
    first = next(i for i, word in enumerate(words) if word.startswith("-"))
    return dict(zip(words[first::2], words[first + 1 :: 2], strict=True))


def readme_command(model: str, *, without: Collection[str] = (), **changes: str) -> list[str]:
    """The page's command for this kind of model, with small sizes, without its model, task and files."""
    commands = PAGE.read_text(encoding="utf-8").split("\n\n")[1:]
    (flags,) = (flags for flags in map(flags_of, commands) if flags.get("--model") == f"transformer/{model}")
    changes = {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
    values = {**flags, **SMALL, "--num-epochs": "1.0", **changes}
    return [word for flag, value in values.items() if flag not in {*OURS, *without} for word in (flag, value)]


def test_our_page_quotes_theirs():
    (theirs,) = (c for c in PAGE.read_text(encoding="utf-8").split("\n\n") if "transformer/polyencoder --batch" in c)
    block = HERE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    ours = flags_of(block.partition("\nparlai interactive")[0])
    assert {**ours, **dict.fromkeys(OURS)} == {**flags_of(theirs), **dict.fromkeys(OURS)}


@pytest.fixture(scope="module")
def datapath(tmp_path_factory):
    path = make_datapath(tmp_path_factory.mktemp("data"))
    sampled = [dialogue(number, options=20) for number in range(12)]
    write(path / "dstc7" / "ubuntu_train_subtask_1_sampled.json", json.dumps(sampled))
    return path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, datapath):
    """(model) -> the file of a model that ParlAI's own agent of this kind wrote, like its zoo's."""
    models = {}

    def make(model):
        if model not in models:
            path = tmp_path_factory.mktemp(model) / "model"
            changes = {"candidates": "inline", "batchsize": "2", "max_train_steps": "1"}  # one step is enough
            changes |= {"lr_scheduler": "none", "dict_maxtokens": "200"}
            command = readme_command(model, without=["--data-parallel", "--fp16"], **changes)
            files = f"-m transformer/{model} -t convai2 -mf {path} --datapath {datapath} --loglevel error"
            TrainModel.main(*files.split(), *command)
            models[model] = path
        return models[model]

    return make


@pytest.fixture
def fine_tune(pretrained, datapath, tmp_path):
    """(model, task) -> the validation's report of the README's command."""

    def run(model, task):
        files = f"--init-model {pretrained(model)} -mf {tmp_path / 'model'} --datapath {datapath} --loglevel error"
        valid, _ = TrainModel.main(*f"{files} -t {task} -m {model}".split(), *readme_command(model))
        return valid

    return run


@mostly_long(
    ("model", "task"),
    [
        *((model, "convai2") for model in MODELS),
        ("polyencoder", "dstc7:DSTC7TeacherAugmentedSampled"),
        ("biencoder", "ubuntu"),
        ("crossencoder", "ubuntu"),
    ],
    quick=1,
)
def test_fine_tuning(model, task, fine_tune, tmp_path):
    if (model, task) == ("crossencoder", "ubuntu"):
        with pytest.raises(InputError, match="which --candidates inline needs; .*-t selection:ubuntu"):
            fine_tune(model, task)
        task = "selection:ubuntu"
    report = fine_tune(model, task)
    assert report["exs"].value() > 0
    assert 0 <= report["accuracy"].value() < 1
    config, _ = read_model_file(tmp_path / "model")
    assert (config.output_scaling, config.backbone["hidden_dropout_prob"]) == (0.06, 0.1)
    assert config.reduction == ("first" if model == "crossencoder" else "mean")


def test_interacting_with_a_pretrained_model(pretrained, tmp_path, monkeypatch, capsys):
    replies = tmp_path / "convai_trainset_cands.txt"
    replies.write_text("i like tea .\ni like the sea .\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("your persona: i love tea.\\nhi how are you doing ?\n[EXIT]\n"))
    command = f"-m polyencoder -mf {pretrained('polyencoder')} --encode-candidate-vecs true --eval-candidates fixed"
    Interactive.main(*f"{command} --fixed-candidates-path {replies} --loglevel error".split())
    output = capsys.readouterr().out
    assert "i like tea ." in output or "i like the sea ." in output
