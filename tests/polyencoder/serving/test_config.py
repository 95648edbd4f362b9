"""Settings of a server that cannot be."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.serving.config import Limits, ServerConfig

KEY = "a-long-secret"


def test_what_is_no_limit_is_an_error():
    for name in ("concurrent", "bytes", "seconds", "read_seconds", "ready_seconds"):
        for wrong in (0, -1, "many", float("nan")):
            with pytest.raises(ConfigError, match="timeout" if name == "seconds" else name):  # by its flag
                Limits(**{name: wrong})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "ranker.example"])
def test_an_address_that_others_reach_needs_a_key(host):
    with pytest.raises(ConfigError, match="no key") as error:
        ServerConfig(model="m", host=host)
    assert error.value.argument == "host"
    assert KEY not in repr(ServerConfig(model="m", host=host, api_key=KEY))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": "short"},
        {"api_key": f"{KEY}\n"},
        {"api_key": "two words"},
        {"allow_hosts": ("example.com:8000",)},
        {"allow_hosts": ("http://example.com",)},
        {"allow_origins": ("shop.example",)},
        {"allow_origins": ("https://shop.example/",)},
        {"allow_origins": ("*",)},
        {"root_path": "ranker"},
        {"root_path": "/ranker/"},
        {"port": 65536},
        {"workers": 0},
        {"threads": 0},
        {"rerank": "x"},
        {"min_probability": 0.5},
        {"no_answer": "no ."},
    ],
)
def test_settings_that_cannot_be_are_errors(wrong):
    with pytest.raises(ConfigError) as error:
        ServerConfig(model="m", **wrong)
    assert error.value.argument in wrong
