"""`zoo:polyencoder/NAME/model`: the published models, fetched once and kept as models of our own.

ParlAI imports `parlai.zoo.polyencoder.NAME` and calls its `download(datapath)`. These modules differ in their name
alone, so they are made here, one for each model that `polyencoder.hub.zoo` knows.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from parlai.zoo.polyencoder.models import prepare

from polyencoder.hub.zoo import ZooModel, zoo_models


def _module(model: ZooModel) -> ModuleType:
    module: Any = ModuleType(f"{__name__}.{model.name}", f"`{model.path}`: {model.title}.")
    module.download = partial(prepare, model)
    return module


sys.modules.update({f"{__name__}.{model.name}": _module(model) for model in zoo_models().values()})
