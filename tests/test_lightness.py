"""What costs seconds, torch and transformers, is imported when it is needed, and not before."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys

import pytest
from cyclopts import App

import polyencoder
from polyencoder.cli.main import COMMANDS, app, read_help
from tests.forked import forgetting

pytestmark = pytest.mark.slow

LIST = "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def loaded(code: str) -> set[str]:
    """The packages that are imported after this code in a new process."""
    whole = f"import atexit, json, sys\natexit.register(lambda: {LIST})\n{code}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import polyencoder",
        "import polyencoder; polyencoder.__version__; polyencoder.ConfigError; dir(polyencoder)",
        *(
            f"import runpy; sys.argv = ['polyencoder', {flag!r}]; runpy.run_module('polyencoder', run_name='__main__')"
            for flag in ("--help", "--version", "no-such-command")
        ),
    ],
)
def test_no_torch_and_no_transformers(code):
    done = loaded(code) if "no-such" not in code else loaded(f"try:\n  {code}\nexcept SystemExit: pass")
    assert "polyencoder" in done
    assert not done & {"torch", "transformers", "tokenizers", "numpy", "sklearn", "parlai"}


def test_transformers_is_imported_for_an_encoder_alone():
    """Neither a ConveRT nor graphs of ONNX wait for it."""
    done = loaded("from polyencoder import Ranker; import polyencoder.index.open, polyencoder.training")
    assert "torch" in done
    assert not done & {"transformers", "scipy", "sklearn", "pandas"}


def test_all_names_are_there():
    for name in polyencoder.__all__:
        assert getattr(polyencoder, name) is not None
        assert name in dir(polyencoder)
    assert polyencoder.__version__.startswith("0.")
    with pytest.raises(AttributeError, match="module 'polyencoder' has no attribute 'Rankers'"):
        _ = polyencoder.Rankers


@pytest.mark.usefixtures("forked_commands")
def test_modules_are_there_without_an_import_of_their_own():
    """They are there as when `import polyencoder` imported them."""
    code = f"{forgetting('polyencoder')}import polyencoder; polyencoder.errors.InputError; polyencoder.index.base.Hit; "
    code += "polyencoder.training; print('polyencoder.training.trainer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    assert not hasattr(polyencoder, "_no_module")


def test_the_list_of_commands_has_their_own_help():
    """It is read without importing them."""
    for name, path in COMMANDS.items():
        module, function = path.split(":")
        command = getattr(importlib.import_module(f"polyencoder.cli.{module}"), function)
        command = command.default_command if isinstance(command, App) else command
        assert read_help(path)
        assert command is None or inspect.cleandoc(command.__doc__).startswith(read_help(path))  # None: a group
        assert app[name].help == read_help(path)


def test_threads_of_torch_wait_without_spinning():
    """As OpenMP prints it when torch is imported."""
    command = [
        sys.executable,
        "-m",
        "polyencoder",
        "rank",
        "--model",
        "none",
        "--context",
        "hi",
        "--candidates",
        __file__,
    ]
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | {"OMP_DISPLAY_ENV": "TRUE"}
    errors = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120).stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in errors


@pytest.mark.usefixtures("forked_commands")
def test_help_in_a_pipe_has_room_for_its_text():
    command = [sys.executable, "-m", "polyencoder", "check", "--help"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert max(map(len, output.splitlines())) == 120
