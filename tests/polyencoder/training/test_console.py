"""The library's log in Python, without any set-up."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("forked_commands")

CODE = """
import logging
from polyencoder.training.console import logged_by_default
{}
with logged_by_default(show=True):
    logging.getLogger("polyencoder.training.run").info("a line")
"""


@pytest.mark.parametrize(
    ("begin", "shown"), [("", True), ("logging.getLogger().addHandler(logging.NullHandler())", False)]
)
def test_it_is_shown_unless_the_program_has_its_own(begin, shown):
    done = subprocess.run([sys.executable, "-c", CODE.format(begin)], capture_output=True, text=True, check=True)
    assert done.stderr.rstrip().endswith("a line") == shown
