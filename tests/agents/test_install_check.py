"""The message for a user who has no ParlAI, or another one than ours."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from parlai.agents.ranker import PARLAI_VERSION, require_parlai

COMMAND = f"`pip install --no-deps parlai=={PARLAI_VERSION}`"


def distribution(folder: Path, *, version: str) -> Path:
    """Write what pip would leave in `folder` for an installed ParlAI, without the package itself."""
    info = folder / f"parlai-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: parlai\nVersion: {version}\n")
    return folder


def test_the_supported_version_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(distribution(tmp_path, version=PARLAI_VERSION))
    require_parlai()


@pytest.mark.parametrize("version", ["1.6.0", "1.7.20", "2.0.0"])
def test_another_version_is_named_with_the_remedy(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(distribution(tmp_path, version=version))
    with pytest.raises(ImportError) as error:
        require_parlai()
    assert str(error.value) == f"ParlAI {version} is installed, but only {PARLAI_VERSION} is supported: run {COMMAND}"


@pytest.mark.parametrize("package", ["parlai.agents.ranker", "parlai.tasks.selection"])
def test_importing_us_without_parlai_says_how_to_install_it(package: str, tmp_path: Path) -> None:
    # The same namespace packages that our own wheel makes where there is no ParlAI: folders without __init__.py.
    for ours in ("parlai.agents.ranker", "parlai.tasks.selection"):
        spec = find_spec(ours)
        assert spec is not None
        assert spec.origin is not None
        link = tmp_path / ours.replace(".", "/")
        link.parent.mkdir(parents=True)
        link.symlink_to(Path(spec.origin).parent)

    # -S leaves out site-packages, so that nothing but the standard library and our folders can be imported.
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-S", "-c", f"import {package}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ImportError: ParlAI is not installed: run {COMMAND}"
