"""Runs a command in several processes under torchrun."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from polyencoder.settings.base import Settings, flat_values

T = TypeVar("T", bound=Settings)


@contextmanager
def one_of_several(settings: T) -> Iterator[tuple[T, bool]]:
    """The settings for this process, and whether it is the first, which alone writes reports."""
    from polyencoder.training.process_group import Place, is_grouped, process_group

    if not is_grouped():
        yield settings, True
        return
    place = Place.from_environment()
    values = flat_values(settings)
    shared = {name: value for name, value in values.items() if name not in ("out", "device")}
    with process_group(place, shared, on_cpu=values["device"] == "cpu") as device:
        yield settings.changed(device=str(device)), place.rank == 0
