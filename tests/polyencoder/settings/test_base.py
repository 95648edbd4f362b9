"""Settings of a YAML file and of flags together."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.train import TrainSettings

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
