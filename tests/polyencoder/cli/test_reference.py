"""The pages of docs/ that are made of the declarations of commands, settings and routes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from polyencoder.cli.main import COMMANDS, app, flags_of
from polyencoder.cli.reference import PAGES, rows

DOCS = Path(__file__).parents[3] / "docs"
PLACES = ["settings.md", "reference/cli.md", "reference/http.md"]


@pytest.fixture(scope="module")
def written():
    """(name) -> a page, which is made once."""
    return cache(lambda name: PAGES[name]())


@pytest.mark.parametrize("place", PLACES)
def test_the_pages_are_up_to_date(place, written):
    if place.endswith("http.md"):
        pytest.importorskip("fastapi")
    kept = (DOCS / place).read_text(encoding="utf-8")
    assert kept == written(Path(place).name), f"run `python -m polyencoder.cli.reference {place}`"


def test_the_page_of_commands_has_each_with_what_it_needs(written):
    page = written("cli.md")
    assert [name for name in COMMANDS if f"](../settings.md#polyencoder-{name}" not in page] == []
    for usage in ("train --train TRAIN --out OUT", "intents predict TEXTS --head HEAD", "export MODEL FOLDER"):
        assert f"`polyencoder {usage}`" in page


@pytest.mark.parametrize("command", COMMANDS)
def test_it_has_each_flag_of_each_command(command, written):
    _, _, section = written("settings.md").partition(f"\n## polyencoder {command}\n")
    section = section.partition("\n## polyencoder ")[0] if command != "intents" else section
    assert [flag for flag in flags_of(command).values() if f"`{flag}`" not in section] == []


def test_a_row_says_where_a_setting_is_and_what_it_may_be():
    found = {row["Setting"]: row for row in rows(app["train"])}
    assert found["`--learning-rate`"] | {"Meaning": ""} == {
        "panel": "Training",
        "Setting": "`--learning-rate`",
        "YAML": "`training.optimizer.learning_rate`",
        "ParlAI": "`--learningrate`",
        "Type": "number",
        "Default": "`5e-05`",
        "Meaning": "",
    }
    assert found["`--schedule`"]["Type"] == "`plateau`, `linear`, `cosine`, `invsqrt`, `constant`"
    assert found["`--train`"]["Default"] == "**required**"
    assert found["`--precision`"]["ParlAI"] == "", "ParlAI has --fp16 and --bf16"


def test_an_argument_without_a_flag_and_its_docstring(written):
    assert next(row["Setting"] for row in rows(app["pretrain"])) == "`CORPUS`, `--CORPUS`"
    assert "Args:" not in written("settings.md")


def test_every_setting_is_explained(written):
    lines = written("settings.md").splitlines()
    assert [line for line in lines if line.startswith("| Setting |") and not line.endswith("| Meaning |")] == []
    assert [line for line in lines if line.startswith("| `") and line.endswith("|  |")] == []
