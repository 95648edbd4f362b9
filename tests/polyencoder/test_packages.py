"""Versions of installed packages, as cards, records and `--version` say them."""

from __future__ import annotations

import platform

import torch

from polyencoder.packages import version_of
from tests.commands import run_command


def test_a_package_that_is_not_installed_has_none():
    assert version_of("torch") == torch.__version__
    assert version_of("no-such-package") is None


def test_the_command_line_prints_its_own_first_and_what_is_below_it():
    first, *below, python = run_command("--version").stdout.strip().split(", ")
    assert first == f"parlai-polyencoder {version_of('parlai-polyencoder')}"
    assert f"torch {torch.__version__}" in below
    assert python == f"Python {platform.python_version()}"
