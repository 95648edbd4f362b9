"""Where ParlAI looks for `zoo:polyencoder/NAME` when it finds no module of that name."""

from __future__ import annotations

from polyencoder.errors import ConfigError
from polyencoder.hub.zoo import zoo_models


def download(datapath: str) -> None:
    """Say which names there are. ParlAI does not tell which one was asked for."""
    raise ConfigError(
        f"zoo:polyencoder/ has no such model; write zoo:polyencoder/NAME/model with one of {', '.join(zoo_models())} "
        "(`polyencoder zoo` describes them)"
    )
