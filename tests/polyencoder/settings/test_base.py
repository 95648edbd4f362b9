"""Settings of a YAML file and of flags together."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import TrainingConfig

RUN = {"train": "pairs.jsonl", "out": "model", "backbone": "encoder", "architecture": "cross"}


def test_a_flag_takes_a_setting_of_the_file_back(tmp_path):
    """So that one file serves several architectures: `--config run.yaml --architecture cross --grad-cache 0`."""
    file = tmp_path / "run.yaml"
    file.write_text("grad_cache: 8\nepochs: 2\n")
    with pytest.raises(ConfigError, match="grad_cache is read only where architecture is"):
        TrainSettings.of(RUN, config=str(file))
    made = TrainSettings.of(RUN, config=str(file), grad_cache="0", pair_tokens="64")
    assert (made.training.grad_cache, made.training.pair_tokens, made.training.epochs) == (0, 64, 2)
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
    made = TrainSettings.of({"train": "a", "out": "b", "backbone": "c"}, config=str(file)).training
    assert (made.matryoshka, made.hard_negatives.ranks) == ((16,), (1, 100))


def test_nested_settings_are_given_whole_or_one_by_one(tmp_path):
    with pytest.raises(ConfigError, match="clip is given beside the whole of training: give one of them"):
        TrainSettings.of(RUN, training=TrainingConfig(candidates="inline"), clip=1)
    file = tmp_path / "run.yaml"
    file.write_text("training: 3")
    with pytest.raises(ConfigError, match="run.yaml: training is 3; it must be a mapping of settings"):
        TrainSettings.of(RUN, config=str(file), clip=1)
    whole = TrainSettings.of(RUN, training=TrainingConfig(candidates="inline", batch_size=5))
    assert (whole.training.batch_size, whole.given) == (5, {"train", "out", "backbone", "architecture"})
