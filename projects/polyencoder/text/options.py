"""Converts options (texts, tools in OpenAI's and MCP's formats) to the texts that are ranked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyencoder.checks import check_candidate, check_list, check_text, format_value, is_blank
from polyencoder.errors import InputError

_SCHEMAS = ("parameters", "inputSchema", "input_schema")  # OpenAI's, MCP's, Anthropic's
_TOOL = "{'name': ..., 'description': ..., 'inputSchema': ...} or {'type': 'function', 'function': ...}"


@dataclass(frozen=True)
class Option:
    """An option with the text that a ranker reads."""

    value: Any
    """The option that was passed."""
    name: str | None
    """A tool's name; None for a text."""
    text: str


def option_text(option: Any) -> str:
    """The text that a ranker reads of an option: training and calibration data are made with it.

    A text stays as it is. A tool becomes `NAME: DESCRIPTION Parameters: PARAMETER (ITS DESCRIPTION), ...`, with the
    properties of its schema in their order; without descriptions the parentheses are left out, without parameters all
    that follows the description. A text that is too long loses its end: parameters, never the name.

    Raises:
        InputError: see `read_options`.
    """
    return _read("the option", option).text


def read_options(values: Any) -> list[Option]:
    """Checks a list of options, at least one, and makes their texts.

    Args:
        values: each a text; a tool of OpenAI's chat completions, `{"type": "function", "function": {"name",
            "description", "parameters"}}`, or responses, without `function`; a tool of MCP, `{"name", "description",
            "inputSchema"}`; an object whose `model_dump` gives one, such as `mcp.types.Tool`; or an `Option` that was
            read before, which is returned unchanged.

    Raises:
        InputError: there is no option, one is empty or no such object, or two have the same name. It names the option,
            and its `argument` is `options.NUMBER`.
    """
    items = check_list("options", values, of="texts or tools")
    if not items:
        raise InputError("options is empty: give at least one text or tool", argument="options")
    options = []
    for number, value in enumerate(items):
        try:
            options.append(_read(f"option {number}", value))
        except InputError as error:
            error.argument = f"options.{number}"
            raise
    numbers: dict[str, int] = {}
    for number, option in enumerate(options):
        if option.name is not None and (first := numbers.setdefault(option.name, number)) != number:
            raise InputError(
                f"options {first} and {number} have the same name, {option.name!r:.60}: rename one, or leave it out",
                argument=f"options.{number}",
            )
    return options


def _read(where: str, value: Any) -> Option:
    if isinstance(value, Option):
        return value
    if isinstance(value, str):
        return Option(value, None, check_candidate(where, value))
    dump = getattr(value, "model_dump", None)
    tool = dump(by_alias=True, exclude_none=True) if callable(dump) else value
    if isinstance(tool, Mapping) and "function" in tool:
        tool, where = tool["function"], f"{where}, function"
    if not isinstance(tool, Mapping):
        raise InputError(f"{where} is {format_value(tool)}; it must be a text, or a tool: {_TOOL}")
    name = _read_field(where, tool, "name")
    where = f"{where} ({name!r:.60})"
    text = f"{name}: {_read_field(where, tool, 'description')}"
    if parameters := ", ".join(_iter_parameters(where, tool)):
        text = f"{text} Parameters: {parameters}"
    return Option(value, name, text)


def _read_field(where: str, tool: Mapping[str, Any], key: str) -> str:
    value = tool.get(key)
    if value is None:
        raise InputError(f"{where} has no {key}; a tool is {_TOOL}")
    text = check_text(f"{where}: {key}", value)
    if is_blank(text):
        raise InputError(f"{where}: {key} is empty: a tool is chosen by its name and description")
    return text.strip()


def _iter_parameters(where: str, tool: Mapping[str, Any]) -> Iterator[str]:
    """Each parameter with its description, if it has one."""
    key = next((key for key in _SCHEMAS if tool.get(key) is not None), None)
    schema = {} if key is None else tool[key]
    if not isinstance(schema, Mapping):
        raise InputError(
            f"{where}: {key} is {format_value(schema)}; it must be a JSON Schema, an object with `properties`"
        )
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise InputError(f"{where}: {key}.properties is {format_value(properties)}; it must be an object of parameters")
    for name, parameter in properties.items():
        field = f"{where}: {key}.properties[{name!r:.60}]"
        check_text(f"{where}: the name of a parameter", name)
        if not isinstance(parameter, (Mapping, bool)):
            raise InputError(
                f"{field} is {format_value(parameter)}; it must be a JSON Schema, such as {{'type': 'string'}}"
            )
        description = None if isinstance(parameter, bool) else parameter.get("description")
        description = "" if description is None else check_text(f"{field}, description", description).strip()
        yield f"{name} ({description})" if description else name
