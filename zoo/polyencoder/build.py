"""ParlAI's fallback for `zoo:polyencoder/NAME` without a module of that name."""

from __future__ import annotations

from polyencoder.errors import ConfigError
from polyencoder.hub.zoo import read_zoo_models


def download(datapath: str) -> None:
    """Raises a ConfigError that lists the models; ParlAI does not pass the name."""
    raise ConfigError(
        f"zoo:polyencoder/ has no such model; write zoo:polyencoder/NAME/model with one of "
        f"{', '.join(read_zoo_models())} (`polyencoder zoo` describes them)"
    )
