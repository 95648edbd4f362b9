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


WRONG = [{"api_key": key} for key in ("short", f"{KEY}\n", "two words")]
WRONG += [{"allow_hosts": (host,)} for host in ("example.com:8000", "http://example.com")]
WRONG += [{"allow_origins": (origin,)} for origin in ("shop.example", "https://shop.example/", "*")]
WRONG += [{"allow_origins": (origin,)} for origin in ("https://Shop.example", "https://shop.example:443")]
WRONG += [{"allow_origins": (origin,)} for origin in ("http://shop.example:80", "https://b\u00fccher.example")]
WRONG += [{"root_path": "ranker"}, {"root_path": "/ranker/"}, {"port": 65536}, {"workers": 0}, {"threads": 0}]
WRONG += [{"rerank": "x"}, {"min_probability": 0.5}, {"no_answer": "no ."}]


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_that_cannot_be_are_errors(wrong):
    with pytest.raises(ConfigError) as error:
        ServerConfig(model="m", **wrong)
    assert error.value.argument in wrong


@pytest.mark.parametrize(
    "origin", ["https://shop.example", "http://shop.example:8080", "https://x.y:8443", "http://[::1]"]
)
def test_sites_as_browsers_name_them(origin):
    assert ServerConfig(model="m", allow_origins=(origin,)).allow_origins == (origin,)
