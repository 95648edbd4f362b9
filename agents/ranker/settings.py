"""Converts the library's settings (`polyencoder.settings`) to ParlAI's arguments, and options back to settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cyclopts import Parameter
from parlai.agents.ranker.options import select_explicit_flags
from parlai.core.opt import Opt
from parlai.core.params import ParlaiParser
from pydantic import BeforeValidator

from polyencoder.errors import ConfigError
from polyencoder.index.options import SearchOptions
from polyencoder.settings.fields import Leaf, get_leaves
from polyencoder.settings.metadata import Needs
from polyencoder.settings.train import NEW_RANKER_FIELDS, TrainSettings


def format_flag(name: str) -> str:
    """The flag of an option: `n_layers` -> `--n-layers`."""
    return f"--{name.replace('_', '-')}"


def get_option_names(cls: type) -> dict[str, str]:
    """ParlAI's options for the settings of a class, by setting."""
    return {name: option.name for name, leaf in get_leaves(cls).items() if (option := leaf.parlai) and option.name}


def add_settings(
    parser: ParlaiParser,
    cls: type,
    *,
    architecture: str | None = None,
    without: Collection[str] = (),
    panel: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Adds an argument for each setting of a class, unless ParlAI has its flag (metadata `Parlai`).

    architecture: without settings of others. without: settings, or groups of them, to leave out. panel: the group of
    arguments; by default that of the setting. notes: additions to the help, by options.
    """
    names, groups, left_out = get_option_names(cls), {}, {*without}
    flags = {format_flag(name): format_flag(option) for name, option in names.items()}
    for name, leaf in get_leaves(cls).items():
        option = leaf.parlai
        if option is None or option.theirs or left_out & {name, *leaf.path} or _belongs_to_others(leaf, architecture):
            continue
        title = panel or leaf.panel
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        groups[title].add_argument(
            format_flag(names[name]),
            type=_get_type(leaf),
            default=_get_default(leaf),
            choices=None if float in leaf.kinds else leaf.choices or None,
            help=_format_help(f"{leaf.help} {(notes or {}).get(option.name, '')}".strip(), flags),
        )


def read_settings(opt: Opt, cls: type) -> dict[str, Any]:
    """The settings of a class from the agents' options, by name, except those that need a setting that is not given."""
    by_name = get_leaves(cls)
    ours = {name: parlai.name for name, leaf in by_name.items() if (parlai := leaf.parlai) and not parlai.theirs}
    values = {name: opt[option] for name, option in ours.items() if option and opt.get(option) is not None}

    def is_read(name: str) -> bool:
        needs = [need.other for need in by_name[name].get_metadata(Needs) if not need.values]
        return all(values.get(other) for other in needs if other in by_name)

    return {name: value for name, value in values.items() if is_read(name)}


def check_read(opt: Opt, cls: type, *, defaults: Mapping[str, Any]) -> None:
    """Raises ConfigError for a given flag of these settings that the other options leave unread.

    The agent's `defaults` and the setting's own default may be given. ParlAI's own flags are not checked: its qhadam
    also reads `--betas`.
    """
    by_name, names, explicit = get_leaves(cls), get_option_names(cls), select_explicit_flags(opt)
    for name, option in names.items():
        value, leaf = explicit.get(option), by_name[name]
        is_usual = str(value) in (str(defaults.get(option)), str(leaf.default))
        if value is None or is_usual or (leaf.parlai and leaf.parlai.theirs):
            continue
        for other, values, _ in leaf.get_metadata(Needs):
            needed = names.get(other)
            if needed is None or (opt.get(needed) in values if values else opt.get(needed)):
                continue
            condition = f"with {format_flag(needed)} {' or '.join(str(v) for v in values if v is not None)}".rstrip()
            raise ConfigError(f"{format_flag(option)} {value} is read only {condition}: give that too, or leave it out")


def _belongs_to_others(leaf: Leaf, architecture: str | None) -> bool:
    needs = [need for need in leaf.get_metadata(Needs) if need.other == "architecture"]
    return architecture is not None and any(architecture not in need.values for need in needs)


def _get_type(leaf: Leaf) -> Callable[[str], Any] | str:
    """The type for argparse; str for a setting that parses texts itself, such as `10-100`."""
    if leaf.get_metadata(BeforeValidator) or str in leaf.kinds:
        return str
    if float in leaf.kinds and leaf.choices:

        def parse_number(text: str) -> float | str:
            return text if text in leaf.choices else float(text)

        parse_number.__name__ = leaf.path[-1]  # argparse's error has it
        return parse_number
    return next(("bool" if kind is bool else kind for kind in (bool, int, float) if kind in leaf.kinds), str)


def _get_default(leaf: Leaf) -> Any:
    if isinstance(leaf.default, tuple):
        texts = (parameter.show_default for parameter in leaf.get_metadata(Parameter))
        return next(text for text in texts if isinstance(text, str))
    return leaf.default


def _format_help(words: str, flags: Mapping[str, str]) -> str:
    return re.sub("--[a-z-]*[a-z]", lambda match: flags.get(match[0], match[0]), words).replace("%", "%%")


RANKER_FIELDS = {
    name: option
    for name, option in get_option_names(TrainSettings).items()
    if name in (*NEW_RANKER_FIELDS, "output_scaling") and name != "turn_separator"
}
"""Fields of a RankerConfig, and their options."""

OTHER_NAMES = {
    **{
        name.rpartition(".")[2]: option
        for name, option in {**get_option_names(TrainSettings), **get_option_names(SearchOptions)}.items()
        if name != option
    },
    "add_label": "add_label_to_fixed_cands",
    "columns.candidates": "selection_candidates",
    "columns.context": "selection_context",
    "columns.response": "selection_response",
    "dataset": "selection_hf",
    "dim": "embedding_size",
    "ffn_dim": "ffn_size",
    "min_count": "dict_minfreq",
    "on_cpu": "no_cuda",
    "timeout": "group_timeout",
}
"""ParlAI's options for the library's arguments, where names differ."""


def get_flag(argument: str | None, parser: ParlaiParser | None) -> str | None:
    """`learning_rate` -> `--learningrate`, if the command whose parser this is has such a flag; else None."""
    if argument is None or parser is None:
        return None
    option = OTHER_NAMES.get(argument, OTHER_NAMES.get(argument.rpartition(".")[2], argument))
    names = [name for action in parser._actions if action.dest == option for name in action.option_strings]
    return max(names, key=len, default=None)  # the long one: ParlAI gives its short flags two hyphens, too
