"""docs/architecture.md: the map of the library names folders and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import polyencoder

LIBRARY = Path(polyencoder.__file__).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "architecture.md"


def rooms() -> dict[str, str]:
    """The entries of the map, by what begins their line: a folder with its slash, or modules of the root."""
    block = re.search(r"## The library\n\n```\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    entries: dict[str, str] = {}
    for line in block[1].splitlines():
        if not line.startswith(" "):
            room = re.split(r"\s{2,}", line)[0]
        entries[room] = entries.get(room, "") + line.removeprefix(room) + "\n"
    return entries


@pytest.mark.parametrize(("room", "text"), rooms().items())
def test_the_map_names_what_exists(room, text):
    if not room.endswith("/"):
        assert all((LIBRARY / f"{name}.py").is_file() for name in room.split(", "))
        return
    names = {path.relative_to(LIBRARY / room).as_posix() for path in (LIBRARY / room).rglob("*")}
    files = {Path(name).name for name in names}
    named = re.findall(r"(?<![*\w/])\w+\.py|\w+/(?=[\s:])", text)
    assert named
    assert [name for name in named if name.rstrip("/") not in (names if name.endswith("/") else files)] == []


def test_every_folder_is_on_the_map():
    folders = {f"{path.parent.name}/" for path in LIBRARY.glob("*/__init__.py")}
    assert folders == {room for room in rooms() if room.endswith("/")}
