"""The code blocks of a Markdown document, and the commands in them.

A block that cannot be run has the reason right before it, in a comment that the rendered page does not show:

    <!-- not run: downloads a model -->
"""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

LANGUAGES = ("sh", "python")
_MARK = re.compile(r"<!--\s*not run:\s*(.+?)\s*-->", re.DOTALL)

# Bash reads the block: quotes, variables, comments, continued lines. It finds no program, and so gives each command,
# with the number of its line, to a function that prints it instead. Then come 0 and the variables.
_RECORDER = """
set -aeu -o pipefail
PATH=/nowhere
export -n PATH PWD SHLVL
command_not_found_handle() { printf '%s\\0' $# "${BASH_LINENO[0]}" "$@" >&3; }
. /dev/stdin
printf '0\\0' >&3
for name in $(compgen -e); do printf '%s\\0' "$name" "${!name}" >&3; done
"""


@dataclass(frozen=True)
class Snippet:
    document: Path
    line: int
    """Of its first line of code."""
    language: str
    text: str
    not_run: str | None = None
    """Why not."""

    @property
    def location(self) -> str:
        return f"{self.document.name}:{self.line}"


@dataclass(frozen=True)
class Command:
    line: int
    """In the document; for a command of several lines, one of these."""
    arguments: tuple[str, ...]
    """The program and its arguments, as a shell passes them on."""

    def __str__(self) -> str:
        return " ".join(self.arguments)


def read_snippets(document: Path) -> list[Snippet]:
    """The blocks of shell commands and Python, in order. Raises ValueError for a mark that belongs to none."""
    snippets: list[Snippet] = []
    reason: str | None = None
    tokens = MarkdownIt().parse(document.read_text(encoding="utf-8"))
    for token in [*tokens, None]:
        if token and token.type == "fence" and token.info.strip() in LANGUAGES:
            snippets.append(Snippet(document, token.map[0] + 2, token.info.strip(), token.content, reason))
            reason = None
        elif reason is not None:
            raise ValueError(f"{document}: 'not run: {reason}' has no block of {' or '.join(LANGUAGES)} right below it")
        elif match := _MARK.search(token.content) if token and token.type == "html_block" else None:
            reason = " ".join(match[1].split())
    return snippets


def commands(snippet: Snippet, variables: dict[str, str], folder: Path) -> list[Command]:
    """What a shell would run of a `sh` snippet in `folder`; `variables` gets those that the snippet sets.

    Raises ValueError where bash itself fails, say at a variable that is not set or an unclosed quote.
    """
    with tempfile.TemporaryFile() as recorded:
        words = ["bash", "-c", f"exec 3>&{recorded.fileno()}\n{_RECORDER}"]
        captured = {"capture_output": True, "text": True, "check": False, "pass_fds": [recorded.fileno()]}
        done = subprocess.run(words, input=snippet.text, env=variables, cwd=folder, **captured)
        recorded.seek(0)
        words = iter(recorded.read().decode().split("\0"))
    if done.returncode or done.stderr:
        raise ValueError(f"{snippet.location}: bash says {done.stderr.strip()}")
    parsed = []
    while count := int(next(words)):
        line = snippet.line + int(next(words)) - 1
        parsed.append(Command(line, tuple(itertools.islice(words, count))))
    variables.update(zip(words, words, strict=False))  # names and values in turns
    return parsed
