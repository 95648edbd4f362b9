"""What an option may be, the text that a ranker reads of it, and what errors say of others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from polyencoder.errors import InputError
from polyencoder.text.options import option_text, read_options

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": " name of the city "},
        "units": {"type": "string"},
        "x": True,
    },
    "required": ["city"],
}
TEXT = "get_weather: Weather of a city. Parameters: city (name of the city), units, x"
FLAT = {"name": "get_weather", "description": "Weather of a city."}
MCP = {**FLAT, "inputSchema": SCHEMA}
OPENAI = {"type": "function", "function": {**FLAT, "parameters": SCHEMA}}


@pytest.mark.parametrize(
    "tool",
    [
        MCP,
        OPENAI,
        {"type": "function", **FLAT, "parameters": SCHEMA},  # OpenAI's responses
        {**FLAT, "input_schema": SCHEMA},
        SimpleNamespace(model_dump=lambda **_: MCP),
    ],
)
def test_formats_of_tools_become_one_text(tool):
    assert option_text(tool) == TEXT
    (option,) = read_options([tool])
    assert (option.value, option.name, option.text) == (tool, "get_weather", TEXT)


@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"properties": {}}])
def test_a_tool_without_parameters(schema):
    assert option_text({**FLAT, "parameters": schema}) == "get_weather: Weather of a city."


def test_a_text_is_its_own():
    options = read_options(("hello", "hello", MCP))
    assert [(option.name, option.text) for option in options] == [(None, "hello")] * 2 + [("get_weather", TEXT)]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (" ", "option 1 is empty: leave it out"),
        (3, r"option 1 is 3 \(int\); it must be a text, or a tool"),
        ({}, "option 1 has no name; a tool is {'name'"),
        ({"type": "web_search"}, "option 1 has no name"),
        ({"name": "x"}, r"option 1 \('x'\) has no description"),
        ({"name": "x", "description": "\n"}, r"option 1 \('x'\): description is empty"),
        ({"name": "", "description": "y"}, "option 1: name is empty"),
        ({"name": 3, "description": "y"}, r"option 1: name is 3 \(int\); it must be a text"),
        ({"name": "x", "description": "\ud800"}, r"option 1 \('x'\): description: .* lone surrogate"),
        ({"type": "function", "function": "x"}, r"option 1, function is 'x' \(str\)"),
        ({"type": "function", "function": {"name": "x"}}, r"option 1, function \('x'\) has no description"),
        ({**FLAT, "parameters": []}, r"\('get_weather'\): parameters is \[\] \(list\); it must be a JSON Schema"),
        ({**FLAT, "inputSchema": "city"}, "inputSchema is 'city' .str.; it must be a JSON Schema"),
        ({**FLAT, "inputSchema": {"properties": ["city"]}}, r"inputSchema.properties is \['city'\] \(list\)"),
        ({**FLAT, "inputSchema": {"properties": {"city": "string"}}}, r"properties\['city'\] is 'string' \(str\)"),
        ({**FLAT, "parameters": {"properties": {"a": {"description": 1}}}}, r"properties\['a'\], description is 1"),
        ({**FLAT, "parameters": {"properties": {1: {}}}}, "the name of a parameter is 1"),
        (OPENAI, "options 0 and 1 have the same name, 'get_weather': rename one"),
    ],
)
def test_an_error_names_the_option(bad, says):
    with pytest.raises(InputError, match=says) as error:
        read_options([MCP, bad])
    assert error.value.argument == "options.1"


@pytest.mark.parametrize(
    ("bad", "says"),
    [([], "options is empty: give at least one"), ("hello", "options is one text"), (MCP, "options is .*; it must be")],
)
def test_what_is_no_list_of_options(bad, says):
    with pytest.raises(InputError, match=says):
        read_options(bad)
