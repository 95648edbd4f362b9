"""The description of an index in PostgreSQL, the comment of its table; and the kinds of indexes."""

from __future__ import annotations

from polyencoder.errors import ConfigError
from polyencoder.index.meta import Maker
from polyencoder.validation import validated

KINDS: dict[str, dict[str, int]] = {"flat": {}, "hnsw": {"m": 16, "ef_construction": 128}, "ivf-flat": {"nlist": 0}}
"""Kind of index -> pgvector's parameters and their defaults; 0: by the number of rows."""

MOST_LISTS = 32_768  # pgvector's maximum

_LIMITS = {"m": (2, 100), "ef_construction": (4, 1000), "nlist": (1, MOST_LISTS)}


@validated
class PostgresMeta(Maker):
    """The description of an index in PostgreSQL."""

    kind: str
    parameters: dict[str, int]
    """The parameters of pgvector's index."""
    words: bool = False
    """Whether the table has the words of the texts."""

    def check_wanted(self, wanted: PostgresMeta, *, kind: str | None, where: str) -> None:
        """Raises ConfigError unless this index is the one that is `wanted`, by a `kind` as for `parse_kind`, if any."""
        named = {name: value for name, value in wanted.parameters.items() if f"{name}=" in (kind or "")}
        differing = [name for name, value in named.items() if value != self.parameters.get(name)]
        argument, what = "postgres", ""
        if kind and self.kind != wanted.kind:
            what = f"and is of the kind {self.kind}, not {wanted.kind}; give"
        elif differing:
            name, has = differing[0], self.parameters.get(differing[0])
            what = f"with {name}={has}, not {wanted.parameters[name]}; leave {name} out, or give"
        elif wanted.words and not self.words:
            argument, what = "words", "without words; give"
        if what:
            raise ConfigError(f"{where}: exists, {what} another #NAME", argument=argument)


def parse_kind(text: str) -> tuple[str, dict[str, int]]:
    """Parses a kind of index with its parameters: `"hnsw,m=32"`. ConfigError for an unknown one."""
    kind, *settings = text.split(",")
    if kind not in KINDS:
        raise ConfigError(f"postgres is {text!r:.60}; it must be one of {', '.join(KINDS)}", argument="postgres")
    parameters = dict(KINDS[kind])
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in parameters or not value.isdecimal():
            had = ", ".join(f"{name}=NUMBER" for name in parameters) or "no parameters"
            raise ConfigError(f"postgres is {text!r:.60}; {setting!r:.60}: {kind} has {had}", argument="postgres")
        least, most = _LIMITS[name]
        if not least <= (number := int(value[:20])) <= most:
            raise ConfigError(f"postgres: {name} is {number}; it must be from {least} to {most}", argument="postgres")
        parameters[name] = number
    if kind == "hnsw" and parameters["ef_construction"] < 2 * parameters["m"]:
        raise ConfigError("postgres: ef_construction must be at least twice m", argument="postgres")
    return kind, parameters
