"""polyencoder-runtime, built and used where there is no torch; and what is imported of the library without it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from polyencoder.ranker.ranked import Ranked

tomllib = pytest.importorskip("tomllib", reason="Python 3.11")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OF_ONNXRUNTIME = {"flatbuffers", "google", "packaging"}

# -S: without the site-packages' own hooks, which would find the library beside what is unpacked.
CODE = """
import importlib.abc, json, sys
sys.path[:] = [sys.argv[1], *(place for place in sys.path if "site-packages" not in place), *sys.argv[2].split()]
allowed = {*sys.argv[3].split(), "polyencoder", *sys.stdlib_module_names}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from polyencoder import Ranked
from polyencoder.runtime import Ranker
ranker = Ranker.from_pretrained(sys.argv[4])
work = json.loads(sys.argv[5])
ranked = ranker.rank(work["context"], work["candidates"])
try:
    from polyencoder import Ranker as torchs
except ImportError as error:
    message = str(error)
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "polyencoder")
print(json.dumps({"ranked": ranked, "modules": ours, "message": message, "file": sys.modules["polyencoder"].__file__}))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """What `pip install ./runtime` puts into site-packages, without a package index."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "runtime", source / "runtime", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    (source / "projects").symlink_to(ROOT / "projects")
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(source / "unpacked")]
    subprocess.run(command, cwd=source / "runtime", check=True, timeout=300)
    return source / "unpacked"


def test_the_same_ranking_where_there_is_nothing_else(unpacked, exported, sentences):
    ranker, folder = exported("poly-first_n_last")
    work = {"context": sentences[:2], "candidates": sentences[2:]}
    names = {re.split(r"[^\w-]", one, maxsplit=1)[0] for one in PROJECT["dependencies"]}
    allowed = " ".join(names | OF_ONNXRUNTIME)
    places = " ".join({str(Path(find_spec(name).origin).parents[1]) for name in names})
    command = [sys.executable, "-S", "-c", CODE, str(unpacked), places, allowed, str(folder)]
    done = subprocess.run([*command, json.dumps(work)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(unpacked)
    expected = ranker.rank(**work)
    ranked = [Ranked(*one) for one in found["ranked"]]
    assert [(one.index, one.text) for one in ranked] == [(one.index, one.text) for one in expected]
    assert [one.score for one in ranked] == pytest.approx([one.score for one in expected], rel=1e-4, abs=1e-4)
    assert found["message"] == (
        "polyencoder-runtime has no polyencoder.Ranker: take Ranker from polyencoder.runtime, or install "
        "parlai-polyencoder"
    )
    # each module is imported, but for what a hub id or a ConveRT alone needs
    modules = {path.relative_to(unpacked).with_suffix("") for path in unpacked.rglob("*.py")}
    built = {".".join(path.parts).removesuffix(".__init__") for path in modules}
    assert built - {*found["modules"]} == {"polyencoder.hub", "polyencoder.hub.resolve"}


def test_the_version_is_the_librarys():
    library = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert PROJECT["version"] == library["version"]
    assert PROJECT["requires-python"] == library["requires-python"]
    ranges = {*library["dependencies"], *library["optional-dependencies"]["onnx"]}
    assert {*PROJECT["dependencies"]} <= ranges
