"""What was removed is answered in one line that says what to use in its place."""

from __future__ import annotations

import pytest

from polyencoder import guesses
from polyencoder.cli import main, removed
from polyencoder.errors import UsageError


def test_a_removed_command_names_its_replacement(monkeypatch):
    monkeypatch.setitem(removed.COMMANDS, "juggle", "examples/juggle.py does it")
    with pytest.raises(UsageError, match=r"juggle was removed: examples/juggle\.py"):
        main.parse(["juggle", "--balls", "3"])


def test_a_removed_flag_names_its_replacement(monkeypatch):
    monkeypatch.setitem(guesses.REMOVED, "juggle_balls", "use --num-negatives")
    with pytest.raises(UsageError, match="--juggle-balls was removed: use --num-negatives"):
        main.parse(["train", "--juggle-balls=3"])


@pytest.mark.parametrize(("command", "setting"), removed.FLAGS)
def test_a_removed_flag_of_one_command_names_its_replacement(command, setting):
    flag = f"--{setting.replace('_', '-')}"
    assert setting not in main.get_flags(command)
    with pytest.raises(UsageError, match=f"{flag} was removed: {removed.FLAGS[command, setting]}"):
        main.parse([command, flag, "1"])
    with pytest.raises(UsageError, match=f"unknown option: {flag}"):
        main.parse(["rank", flag, "1"])


def test_nothing_that_was_removed_exists():
    assert not removed.COMMANDS.keys() & main.COMMANDS.keys()
    assert not guesses.REMOVED.keys() & {name for command in main.COMMANDS for name in main.get_flags(command)}


@pytest.mark.parametrize("name", removed.GUESSED_COMMANDS)
def test_a_command_of_another_library_names_what_to_use(name):
    hint = removed.GUESSED_COMMANDS[name]
    assert name not in main.COMMANDS
    assert hint.split()[0].startswith("--") or hint.split()[0] in main.COMMANDS
    with pytest.raises(UsageError, match=f"no command '{name}'; {hint.split()[0]} "):
        main.parse([name, "x"])


@pytest.mark.parametrize(
    ("command", "flag", "suggested"),
    [
        ("train", "--lr", "--learning-rate"),
        ("train", "--model", "--backbone"),
        ("train", "--output_dir", "--out"),
        ("train", "--fp16", "--precision float16"),
        ("search", "--fp16", "--model-dtype float16"),
        ("search", "--query=hi", "--context"),
        ("rank", "--documents", "--candidates"),
        ("search", "--documents", "--index"),
        ("train", "--arch", "--architecture"),
        ("search", "--top_n", "--top-k"),
        ("train", "--model-name-or-path", "--backbone"),
        ("search", "--torch_dtype", "--model-dtype"),
    ],
)
def test_a_flag_of_another_library_names_that_of_the_command(command, flag, suggested):
    with pytest.raises(UsageError, match=rf"unknown option: {flag.partition('=')[0]} \(did you mean {suggested}\?\)"):
        main.parse([command, flag])


def test_each_guessed_flag_means_one_that_a_command_has():
    flags = {flag.removeprefix("--") for name in main.COMMANDS for flag in main.get_flags(name).values()}
    assert {flag.split()[0] for suggested in removed.GUESSED_FLAGS.values() for flag in suggested} <= flags
