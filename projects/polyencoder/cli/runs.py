"""What commands share that run for long: flags of the fields of their settings, one process of several, a log."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer

from polyencoder.training.console import logged
from polyencoder.training.process_group import Place, is_grouped, process_group

__all__ = ["logged", "one_of_several", "with_flags"]

Settings = TypeVar("Settings", bound=Any)


def with_flags(command: Callable[..., None], settings: type, help: Mapping[str, Mapping[str, str]]) -> None:
    """Give a command, in the place of `**given`, a flag for each field of its settings, None unless it was given.

    `help`: panel of the help -> field -> what it says.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for one in signature.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    parameters = [*own, *_parameters(settings, help, without={one.name for one in own})]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}


@contextmanager
def one_of_several(settings: Settings) -> Iterator[tuple[Settings, bool]]:
    """The settings for this process, and whether it is the first, which alone speaks."""
    if not is_grouped():
        yield settings, True
        return
    place = Place.from_environment()
    shared = {name: value for name, value in dataclasses.asdict(settings).items() if name not in ("out", "device")}
    with process_group(place, shared, on_cpu=settings.device == "cpu") as device:
        yield dataclasses.replace(settings, device=str(device)), place.rank == 0


def _parameters(settings: type, help: Mapping[str, Mapping[str, str]], *, without: set[str]) -> list[inspect.Parameter]:
    types = get_type_hints(settings)
    panels = {name: (panel, text) for panel, fields in help.items() for name, text in fields.items()}
    parameters = []
    for field in dataclasses.fields(settings):
        if field.name in without:
            continue
        panel, text = panels[field.name]
        if field.default not in (None, "", False, True):
            text = f"{text.rstrip('.')} (default: {field.default})."
        option = typer.Option(help=text, rich_help_panel=panel, show_default=False)
        annotation = Annotated[_plain(types[field.name]) | None, option]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def _plain(kind: Any) -> Any:
    """`int | None` -> int, a choice of texts -> str, which the settings themselves check."""
    if get_origin(kind) is Literal:
        return str
    inner = [_plain(one) for one in get_args(kind) if one is not type(None)]
    return str if str in inner else inner[0] if inner else kind
