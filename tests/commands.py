"""`polyencoder COMMAND ...`, run in this process."""

from __future__ import annotations

import pytest
from click.testing import Result
from typer.testing import CliRunner

from polyencoder.cli.main import app

__all__ = ["command_fails", "run_command"]


def run_command(*arguments: object, input: str | None = None) -> Result:
    """What a command that must succeed said: `stdout`, `stderr`, and both in `output`. Its errors are raised."""
    result = CliRunner().invoke(app, [*map(str, arguments)], input=input, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def command_fails(error: type[Exception], match: str, *arguments: object, input: str | None = None) -> None:
    """Assert that a command ends with this error, whose message is one line."""
    with pytest.raises(error, match=match) as raised:
        CliRunner().invoke(app, [*map(str, arguments)], input=input, catch_exceptions=False)
    assert "\n" not in str(raised.value)
