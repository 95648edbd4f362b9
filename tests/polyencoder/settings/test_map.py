"""The settings of MAP's training are checked."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.settings.map import MapSettings


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 1},
        {"patience": 0},
        {"label_smoothing": 1.0},
        {"learning_rates": ()},
        {"regularizers": (-1.0,)},
    ],
)
def test_what_are_no_settings(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        MapSettings(**fields)
