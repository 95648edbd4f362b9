"""The library's exceptions: one small tree, so that callers can catch all of them or one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


class PolyencoderError(RuntimeError):
    """Base of all errors that this library raises on purpose. The message says what is wrong and what to do.

    A RuntimeError, as ParlAI's and torch's errors are: code that catches theirs for a model that cannot be loaded, or
    for a label that is not among the candidates, catches ours, too.

    Args:
        message: speaks of arguments, in the words of Python.
        argument: the argument at fault, if any, by its name in the settings of a run, a model or an index. A command
            line adds its flag to the message.
        where: the file, folder or address at fault, which precedes the message.
        public: what a server tells its clients, without its paths, addresses and models; None for the message alone
            if there is a `where`, else nothing.
    """

    def __init__(
        self, message: str = "", *, argument: str | None = None, where: object = None, public: str | None = None
    ) -> None:
        super().__init__(message if where is None else f"{where}: {message}")
        self.argument = argument
        self.public = message if public is None and where is not None else public


class InputError(PolyencoderError, ValueError):
    """Data that cannot be used: an empty candidate list, a label that is missing, a tensor of the wrong shape."""


class ConfigError(PolyencoderError, ValueError):
    """Settings that contradict each other, are unknown, or name something that does not exist."""


class UsageError(ConfigError):
    """A command line that cannot be read: an unknown command or flag, a missing one, one without its value."""


class CheckpointError(PolyencoderError):
    """A saved model that is missing, damaged, of another architecture or size, or from a newer version."""


class NoAnswerError(PolyencoderError):
    """A server that cannot be reached or does not answer in time. A server that refuses a request has answered."""


class TrainingError(PolyencoderError):
    """Training that cannot continue: it diverged, or another process is training the same model."""


def suggest_similar(
    name: str, choices: Iterable[str], *, listed: bool = True, shown: Callable[[str], str] = str, form: str = "; {}"
) -> str:
    """The end of a message about an unknown name: "; did you mean X?" for the most similar known name.

    Args:
        name: the unknown name.
        choices: the known names.
        listed: whether to list them if none is similar, as "; it must be one of X, Y"; else it is empty.
        shown: formats a known name.
        form: of the result, around the hint.
    """
    choices = [*choices]
    if close := get_close_matches(name, choices, n=1):
        return form.format(f"did you mean {shown(close[0])}?")
    return form.format(f"it must be one of {', '.join(map(shown, choices))}") if listed else ""


def join_lines(error: BaseException) -> str:
    """The whole message of another library's exception, in one line of at most 300 characters."""
    return f"{' '.join(str(error).split()) or type(error).__name__:.300}"


def get_first_line(error: BaseException) -> str:
    """The first line of another library's exception, for our own error message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
