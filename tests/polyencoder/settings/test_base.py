"""Settings of a YAML file and of flags together."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError, InputError
from polyencoder.settings.base import read_yaml
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import TrainingConfig

RUN = {"train": "pairs.jsonl", "out": "model", "backbone": "encoder", "architecture": "cross"}


def test_a_flag_takes_a_setting_of_the_file_back(tmp_path):
    """So that one file serves several architectures: `--config run.yaml --architecture cross --grad-cache 0`."""
    file = tmp_path / "run.yaml"
    file.write_text("grad_cache: 8\nepochs: 2\n")
    with pytest.raises(ConfigError, match="grad_cache is read only where architecture is"):
        TrainSettings.of(RUN, config=str(file))
    settings = TrainSettings.of(RUN, config=str(file), grad_cache="0", pair_tokens="64")
    assert (settings.training.grad_cache, settings.training.pair_tokens, settings.training.epochs) == (0, 64, 2)
    with pytest.raises(ConfigError, match="grad_cache is read only where architecture is"):
        TrainSettings.of(RUN, config=str(file), grad_cache="4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training: {optimizer: {learning_rat: 1}}",
            "unknown setting 'training.optimizer.learning_rat'; did you mean 'training.optimizer.learning_rate'",
        ),
        ("training: 3", "training is 3; it must be a mapping of settings"),
        ("betas: 0.9,b", "betas is 'b'; it must be a number$"),
        ("betas: 0.9", "betas is 0.9; it must be two numbers with a comma$"),
        ("optimizer: {name: sgd}", "optimizer is {'name': 'sgd'}; it must be one of adamw, adam, "),
        ("batch_size: true", "batch_size is True; it must be a whole number"),
    ],
)
def test_a_file_that_cannot_be_read_into_settings(tmp_path, text, message):
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"run.yaml: {message}"):
        TrainSettings.of({"train": "a", "out": "b", "backbone": "c"}, config=str(file))


@pytest.mark.parametrize("text", ["100", "'100'", "[100]", "1-100", "[1, 100]"])
def test_numbers_of_a_list_may_be_one_number_of_a_file_as_of_a_flag(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(f"architecture: bi\nmatryoshka: 16\nhard_negatives: 4\nhard_negative_ranks: {text}")
    training = TrainSettings.of({"train": "a", "out": "b", "backbone": "c"}, config=str(file)).training
    assert (training.matryoshka, training.hard_negatives.ranks) == ((16,), (1, 100))


def test_nested_settings_are_given_whole_or_one_by_one(tmp_path):
    with pytest.raises(ConfigError, match="clip is given beside the whole of training: give one of them"):
        TrainSettings.of(RUN, training=TrainingConfig(candidates="inline"), clip=1)
    file = tmp_path / "run.yaml"
    file.write_text("training: 3")
    with pytest.raises(ConfigError, match="run.yaml: training is 3; it must be a mapping of settings"):
        TrainSettings.of(RUN, config=str(file), clip=1)
    whole = TrainSettings.of(RUN, training=TrainingConfig(candidates="inline", batch_size=5))
    assert (whole.training.batch_size, whole.explicit) == (5, {"train", "out", "backbone", "architecture"})


@pytest.fixture
def write(tmp_path):
    def put(text: str) -> str:
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "run.yaml")

    return put


def test_a_nested_setting_of_a_file_is_read(write):
    settings = TrainSettings.of(RUN, config=write("training: {epochs: 7, optimizer: {learning_rate: 0.5}}\n"))
    assert (settings.training.epochs, settings.training.optimizer.learning_rate) == (7, 0.5)


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
