"""Versions of installed packages, as cards, records and `--version` say them."""

from __future__ import annotations

import logging
import platform

import numpy as np

from polyencoder.packages import errors_alone, get_version
from tests.commands import run_command


def test_a_package_that_is_not_installed_has_none():
    assert get_version("numpy") == np.__version__
    assert get_version("no-such-package") is None


def test_one_logger_alone_is_silenced_and_only_within(caplog):
    silenced, other = logging.getLogger("theirs.one"), logging.getLogger("theirs.other")
    with errors_alone("theirs.one"):
        for log in (silenced, other):
            log.warning("advice")
        silenced.error("damaged")
    silenced.warning("again")
    assert [(record.name, record.message) for record in caplog.records] == [
        ("theirs.other", "advice"),
        ("theirs.one", "damaged"),
        ("theirs.one", "again"),
    ]


def test_the_command_line_prints_its_own_first_and_what_is_below_it():
    first, *below, python = run_command("--version").stdout.strip().split(", ")
    assert first == f"parlai-polyencoder {get_version('parlai-polyencoder')}"
    assert f"numpy {np.__version__}" in below
    assert python == f"Python {platform.python_version()}"
