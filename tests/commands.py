"""`polyencoder COMMAND ...`, run in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

import pytest

from polyencoder.cli.main import main, run

__all__ = ["Result", "command_fails", "invoke", "run_command"]


class Result(NamedTuple):
    """The output of a command, and its exit code."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both, one behind the other."""
        return self.stdout + self.stderr


def invoke(*arguments: object, input: str | None = None) -> Result:
    """The output of a command and its exit code, as a shell has it."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["polyencoder", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO((input or "").encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


def run_command(*arguments: object, input: str | None = None) -> Result:
    """The output of a command that must succeed: `stdout`, `stderr`, and both in `output`. Its errors are raised."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO((input or "").encode()))),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        run([*map(str, arguments)])
    return Result(0, out.getvalue(), err.getvalue())


def command_fails(error: type[Exception], match: str, *arguments: object, input: str | None = None) -> None:
    """Assert that a command ends with this error, whose message is one line."""
    with pytest.raises(error, match=match) as raised:
        run_command(*arguments, input=input)
    assert "\n" not in str(raised.value)
