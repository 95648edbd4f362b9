"""`zoo:polyencoder/NAME/model`: the published models, downloaded and converted once.

ParlAI imports `parlai.zoo.polyencoder.NAME` and calls its `download(datapath)`. These modules differ only in their
name, so they are created here, one for each model of `polyencoder.hub.zoo`.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import Any

from parlai.zoo.polyencoder.models import prepare

from polyencoder.hub.zoo import ZooModel, read_zoo_models


def _build_module(model: ZooModel) -> ModuleType:
    module: Any = ModuleType(f"{__name__}.{model.name}", f"`{model.path}`: {model.title}.")
    module.download = partial(prepare, model)
    return module


sys.modules.update({f"{__name__}.{model.name}": _build_module(model) for model in read_zoo_models().values()})
