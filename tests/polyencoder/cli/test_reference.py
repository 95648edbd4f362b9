"""The pages of docs/ that are made of the declarations of commands, settings and routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyencoder.cli.main import COMMANDS, app, flags_of
from polyencoder.cli.reference import PAGES, commands_page, page, rows

DOCS = Path(__file__).parents[3] / "docs"
PLACES = ["settings.md", "reference/cli.md", "reference/http.md"]


@pytest.mark.parametrize("place", PLACES)
def test_the_pages_are_up_to_date(place):
    if place.endswith("http.md"):
        pytest.importorskip("fastapi")
    written = PAGES[Path(place).name]()
    assert (DOCS / place).read_text(encoding="utf-8") == written, f"run `python -m polyencoder.cli.reference {place}`"


def test_the_page_of_commands_has_each_with_what_it_needs():
    assert [name for name in COMMANDS if f"](../settings.md#polyencoder-{name}" not in commands_page()] == []
    for usage in ("train --train TRAIN --out OUT", "intents predict TEXTS --head HEAD", "export MODEL FOLDER"):
        assert f"`polyencoder {usage}`" in commands_page()


@pytest.mark.parametrize("command", COMMANDS)
def test_it_has_each_flag_of_each_command(command):
    _, _, section = page().partition(f"\n## polyencoder {command}\n")
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


def test_an_argument_without_a_flag_and_its_docstring():
    assert next(row["Setting"] for row in rows(app["pretrain"])) == "`CORPUS`, `--CORPUS`"
    assert "Args:" not in page()


def test_every_setting_is_explained():
    unexplained = [
        (command, row["Setting"])
        for command in COMMANDS
        if app[command].default_command is not None
        for row in rows(app[command])
        if not row["Meaning"]
    ]
    assert unexplained == []
