from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError, InputError
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.yaml_file import read_yaml


@pytest.fixture
def write(tmp_path):
    def put(text: str) -> str:
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "run.yaml")

    return put


def test_what_yaml_and_json_hold(write):
    assert read_yaml(write("# a comment\nepochs: 3\noptimizer: {name: adam}\n")) == {
        "epochs": 3,
        "optimizer": {"name": "adam"},
    }
    assert read_yaml(write('{"epochs": 3, "train": "ü.jsonl"}')) == {"epochs": 3, "train": "ü.jsonl"}


def test_a_mapping_may_be_merged_into_several(write):
    text = "usual: &usual {a: 1, b: 2}\nother: &other {c: 3}\nboth:\n  <<: *usual\n  <<: *other\n  a: 4\n"
    assert read_yaml(write(text))["both"] == {"a": 4, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 3\nseed: 1\nepochs: 4\n", "line 3: epochs is given twice"),
        ("batch-size: 3\nbatch_size: 4\n", "line 2: batch_size is given twice"),
        ("optimizer:\n  name: adam\n  name: sgd\n", "line 3: name is given twice"),
        ('{"seed": 1,\n "seed": 1}', "line 2: seed is given twice"),
    ],
)
def test_a_name_that_is_given_twice(write, text, message):
    path = write(text)
    with pytest.raises(InputError, match=rf"^{path}, {message}$"):
        read_yaml(path)
    with pytest.raises(InputError, match=message):
        TrainSettings(config=path)


@pytest.mark.parametrize("text", ["seed: 1\ntraining:\n  seed: 2\n", "training: {seed: 2}\nseed: 1\n"])
def test_a_setting_that_is_given_by_both_of_its_names(write, text):
    path = write(text)
    with pytest.raises(ConfigError, match=rf"^{path}: seed is given twice, also as training.seed: give one of"):
        TrainSettings(config=path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("- 3\n", "must hold `name: value` lines"), ("", "must hold `name: value` lines"), ("a: [\n", "not YAML")],
)
def test_a_file_that_is_no_mapping(write, text, message):
    with pytest.raises(InputError, match=message):
        read_yaml(write(text))


def test_a_file_that_cannot_be_read(write, tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read \(.*No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="config is empty"):
        read_yaml("")
    path = write("")
    with open(path, "wb") as file:
        file.write(b"train: \xff\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_yaml(path)
