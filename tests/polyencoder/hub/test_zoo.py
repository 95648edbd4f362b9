"""The facts of the zoo are whole, and every way to name a model finds it."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import get_args

import pytest

from polyencoder.config import Reduction
from polyencoder.errors import ConfigError
from polyencoder.hub.zoo import get_zoo_model, read_zoo_models
from polyencoder.modeling.families import FAMILIES

NAMES = list(read_zoo_models())


@pytest.mark.parametrize("name", NAMES)
def test_each_model_is_described_whole(name):
    model = read_zoo_models()[name]
    assert model.name == name
    assert model.architecture in FAMILIES
    assert model.reduction in get_args(Reduction)
    assert model.title
    assert f"zoo:polyencoder/{name}/model" == model.path
    assert model.path in model.command or model.location in model.command
    assert all(0 < result.value < 100 and result.source for result in model.results)


@pytest.mark.parametrize("name", NAMES)
def test_each_source_can_be_fetched_and_checked(name):
    source = read_zoo_models()[name].source
    assert source.url.startswith(("https://", "http://parl.ai/"))
    assert source.licence
    assert source.size is None or source.size > 1 << 20
    assert source.sha256 is None or re.fullmatch("[0-9a-f]{64}", source.sha256)
    location = read_zoo_models()[name].location
    assert not location.startswith(("/", "..", "~"))
    assert source.is_hub == ("huggingface.co" in source.url)
    if source.is_hub:  # the id in the address and the one that is loaded
        assert location in source.url


def test_nothing_in_the_file_is_left_out():
    facts = json.loads(files("polyencoder.hub").joinpath("zoo.json").read_text(encoding="utf-8"))
    assert list(facts["models"]) == NAMES
    used = {fields["source"] for fields in facts["models"].values()}
    assert used == set(facts["sources"])
    with pytest.raises(TypeError):
        read_zoo_models()["mine"] = read_zoo_models()[NAMES[0]]  # one mapping for the whole process


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("written", ["{}", "polyencoder/{}", "zoo:polyencoder/{}/model", "polyencoder/{}/model"])
def test_every_way_to_name_a_model(name, written):
    assert get_zoo_model(written.format(name)) is read_zoo_models()[name]


def test_a_name_that_is_mistyped():
    name = NAMES[0]
    with pytest.raises(ConfigError, match=rf"no model '{name}x'; did you mean {name}\? It has: {name}, "):
        get_zoo_model(f"zoo:polyencoder/{name}x/model")
    with pytest.raises(ConfigError, match=r"no model 'qqqq'\. It has: "):
        get_zoo_model("qqqq")
