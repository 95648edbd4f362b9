"""The zoo: published models by name, with their sources and results.

The facts are in zoo.json beside this file; `parlai.zoo.polyencoder` fetches what they describe. A size or checksum
that its publisher does not give is None.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from polyencoder.config import Architecture
from polyencoder.errors import ConfigError, suggest_similar

PAPER = "Humeau et al., Poly-encoders, ICLR 2020 (https://arxiv.org/abs/1905.01969)"


@dataclass(frozen=True)
class ModelSource:
    """The source of a model: a ParlAI archive with several models, or a Hugging Face repository."""

    url: str
    licence: str
    size: int | None
    """Bytes of the archive, or of the repository's model.safetensors."""
    sha256: str | None
    """Hexadecimal digest of the same file."""

    @property
    def is_hub(self) -> bool:
        return self.url.startswith("https://huggingface.co/")


@dataclass(frozen=True)
class PublishedResult:
    """The paper's result for models fine-tuned from this one."""

    measure: str
    value: float
    """In percent."""
    source: str
    """The table and its row."""


@dataclass(frozen=True)
class ZooModel:
    """A published model: `zoo:polyencoder/NAME/model` in ParlAI's commands."""

    name: str
    title: str
    architecture: Architecture
    source: ModelSource
    location: str
    """The model file's path in the archive, or the id on the hub."""
    command: str
    """A command that uses the model; FILE stands for a new model file."""
    results: tuple[PublishedResult, ...]
    reduction: str = "first"
    """The pooling of a bi-encoder around an encoder of the hub."""

    @property
    def path(self) -> str:
        """The path that ParlAI takes for a model file."""
        return f"zoo:polyencoder/{self.name}/model"


@functools.cache
def read_zoo_models() -> Mapping[str, ZooModel]:
    """All models of the zoo, by name."""
    facts = json.loads(files("polyencoder.hub").joinpath("zoo.json").read_text(encoding="utf-8"))
    sources = {name: ModelSource(**fields) for name, fields in facts["sources"].items()}
    models = {}
    for name, fields in facts["models"].items():
        results = tuple(PublishedResult(*row) for row in fields["results"])
        models[name] = ZooModel(name=name, **(fields | {"source": sources[fields["source"]], "results": results}))
    return MappingProxyType(models)


def get_zoo_model(name: str) -> ZooModel:
    """One model of the zoo, by its name or by the path that ParlAI's commands take. ConfigError for an unknown one."""
    models = read_zoo_models()
    name = name.removeprefix("zoo:").removeprefix("polyencoder/").removesuffix("/model")
    if name not in models:
        hint = suggest_similar(name, models, listed=False) or "."
        raise ConfigError(f"the zoo has no model {name!r}{hint} It has: {', '.join(models)}")
    return models[name]
