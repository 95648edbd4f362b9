"""Presets: what they set, and what takes precedence over them."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.base import get_flat_values
from polyencoder.settings.train import PRESETS, TrainSettings

REQUIRED = {"train": "a.jsonl", "out": "out", "backbone": "encoder"}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_all_of_its_settings_and_says_so(name):
    settings = TrainSettings(preset=name, **REQUIRED)
    assert settings.preset_values == PRESETS[name]
    assert get_flat_values(settings) == get_flat_values(TrainSettings(**REQUIRED)) | {"preset": name} | PRESETS[name]


def test_what_is_given_takes_precedence(tmp_path):
    (tmp_path / "run.yaml").write_text("preset: balanced\nepochs: 5\n")
    settings = TrainSettings(config=str(tmp_path / "run.yaml"), batch_size=16, **REQUIRED)
    assert (settings.training.epochs, settings.training.batch_size) == (5.0, 16)
    assert settings.preset_values == {"architecture": "bi", "text_truncate": 128, "label_truncate": 48}
    assert TrainSettings(preset="balanced", max_updates=9, **REQUIRED).training.epochs is None


def test_a_cross_encoder_keeps_its_own_batches():
    settings = TrainSettings(preset="accurate", architecture="cross", **REQUIRED)
    assert (settings.training.batch_size, settings.training.grad_cache) == (8, 0)
    assert settings.preset_values == {"text_truncate": 256}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"preset": "quick"}, "must be one of fast, balanced, accurate"),
        ({"preset": "fast", "backbone": None, "init": "runs/old"}, "preset is not read with init"),
        (
            {"preset": "fast", "architecture": "convert", "vocabulary": "v", "backbone": None},
            "preset is read only where",
        ),
    ],
)
def test_where_a_preset_has_no_meaning(fields, message):
    with pytest.raises(ConfigError, match=message):
        TrainSettings(**REQUIRED | fields)
