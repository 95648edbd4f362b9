"""What `polyencoder zoo` prints, and the facts behind it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from polyencoder.errors import ConfigError
from polyencoder.hub.zoo import get_zoo_model, read_zoo_models
from tests.commands import run_command
from tests.forked import forgetting

NAMES = [f"{data}_{kind}" for data in ("reddit", "wikito") for kind in ("bi", "poly", "cross")]
NAMES += ["convai2_bi", "convai2_poly", "bert_base", "minilm"]


@pytest.fixture
def run():
    """(*arguments) -> what `polyencoder zoo` prints."""

    def call(*arguments: str) -> str:
        return run_command("zoo", *arguments).stdout

    return call


def test_the_table(run):
    header, *rows = run().splitlines()
    assert header.split() == ["name", "what", "size", "licence"]
    assert [row.split()[0] for row in rows] == NAMES
    assert {len(re.split(r" {2,}", row)) for row in rows} == {4}
    minilm = re.split(r" {2,}", rows[-1])
    assert minilm[2:] == ["91 MB", "Apache-2.0"]
    assert "unknown" in rows[0]


@pytest.mark.parametrize("name", NAMES)
def test_the_details(name, run):
    output, model = run(name), get_zoo_model(name)
    for fact in (model.path, model.title, model.source.url, model.location, model.source.licence, model.command):
        assert fact in output
    assert (model.source.sha256 or "unknown") in output
    lines = re.findall(r"^ +(\d+\.\d) +(.+) \((Table .+)\)$", output, re.MULTILINE)
    assert [(float(value), measure, source) for value, measure, source in lines] == [
        (result.value, result.measure, result.source) for result in model.results
    ]
    assert ("Humeau" in output) == bool(model.results)


@pytest.mark.parametrize("written", ["zoo:polyencoder/minilm/model", "polyencoder/minilm/model", "polyencoder/minilm"])
def test_the_path_of_parlais_commands_is_a_name_too(written, run):
    assert run(written) == run("minilm")


def test_json(run):
    facts = json.loads(run("--json"))
    assert [fact["name"] for fact in facts] == NAMES
    assert json.loads(run("minilm", "--json")) == facts[-1]
    assert facts[0]["source"]["size"] is None
    assert facts[0]["results"][0] == {"measure": "ConvAI2 test R@1/20", "value": 84.8, "source": "Table 4, Bi-encoder"}


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"no model 'reddit_pol'; did you mean reddit_poly\? It has: reddit_bi, "):
        get_zoo_model("reddit_pol")


def test_the_facts():
    for model in read_zoo_models().values():
        assert model.source.url.startswith(("http://", "https://"))
        assert model.source.sha256 is None or re.fullmatch("[0-9a-f]{64}", model.source.sha256)
        assert model.source.is_hub or model.location.endswith("/model")
        assert not model.source.is_hub or model.source.url.endswith(model.location)
        assert model.path in model.command
        assert ("FILE" in model.command) == (" train_model " in model.command)
        assert all(50 < result.value < 100 for result in model.results)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_commands")
def test_an_error_is_one_line_and_parlai_is_not_imported():
    code = forgetting("parlai", "polyencoder")
    code += "from polyencoder.cli.main import main; sys.argv = ['polyencoder', 'zoo', 'x']\n"
    code += "try: main()\nfinally: assert not any(name.startswith('parlai') for name in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.fullmatch(r"polyencoder: the zoo has no model 'x'\. It has: .*minilm\n", result.stderr)
