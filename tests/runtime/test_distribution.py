"""polyencoder-runtime, built and used where there is no torch; and what is imported of the library without it."""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from polyencoder.index.hits import Hit
from polyencoder.ranked import Ranked

tomllib = pytest.importorskip("tomllib", reason="Python 3.11")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# -S: without the site-packages' own hooks, which would find the library beside what is unpacked.
CODE = """
import importlib.abc, json, sys
sys.path[:] = [sys.argv[1], *(place for place in sys.path if "site-packages" not in place), *sys.argv[2].split()]
allowed = {*sys.argv[3].split(), "polyencoder", *sys.stdlib_module_names}

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
del sys.argv[1:4]

def show(**found):
    print(json.dumps({"file": sys.modules["polyencoder"].__file__, **found}))
"""
RANK = """
import polyencoder.cli.check, polyencoder.cli.encode, polyencoder.cli.prepare_reddit
from polyencoder import ConfigError, Ranked, Ranker
from polyencoder.storage.files import reporting_write_errors
with reporting_write_errors("nothing"):
    pass
ranker = Ranker.from_pretrained(sys.argv[1], backend="onnx")
work = json.loads(sys.argv[2])
ranked = ranker.rank(**work)
found = [ranker.search(work["context"], sys.argv[3], exactness=exactness) for exactness in ("exact", None)]
made = ranker.index(work["candidates"][:2])
made.add(work["candidates"])
built = [hit.text for hit in ranker.search(work["context"], made, top_k=99, diversity=.1)]
messages = []
for call in (lambda: Ranker.from_pretrained(sys.argv[1]), lambda: ranker.save_pretrained("nowhere")):
    try:
        call()
    except Exception as error:
        messages.append(str(error))
show(ranked=ranked, found=found, built=built, messages=messages)
"""
COMMAND = """
from polyencoder.__main__ import main
main()
"""


def needed(requirements: list[str], *, with_required: bool) -> set[str]:
    """The modules of these requirements, and of what they require."""
    todo, done = [Requirement(requirement) for requirement in requirements], set()
    while todo:
        requirement = todo.pop()
        if (key := (canonicalize_name(requirement.name), *sorted(requirement.extras))) in done:
            continue
        done.add(key)
        with contextlib.suppress(PackageNotFoundError):  # of other platforms and versions of Python
            for other in map(Requirement, (requires(requirement.name) or ()) if with_required else ()):
                marker = other.marker
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                    todo.append(other)
    names = {name for name, *_ in done}
    return {module for module, owners in packages_distributions().items() if names & {*map(canonicalize_name, owners)}}


def command(
    code: str, unpacked: Path, requirements: list[str], *arguments: str, with_required: bool = True
) -> list[str]:
    """Runs code where there is nothing but what is unpacked and these requirements."""
    names = needed(requirements, with_required=with_required)
    folders = {str(Path(spec.origin).parents[1]) for name in names if (spec := find_spec(name)) and spec.has_location}
    return [sys.executable, "-S", "-c", CODE + code, str(unpacked), " ".join(folders), " ".join(names), *arguments]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """What `pip install ./runtime` puts into site-packages, without a package index."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "runtime", source / "runtime", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    (source / "projects").symlink_to(ROOT / "projects")
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", str(source / "unpacked")]
    subprocess.run(command, cwd=source / "runtime", check=True, timeout=300)
    return source / "unpacked"


def test_the_same_answers_where_there_is_nothing_else(unpacked, exported, sentences, tmp_path):
    pytest.importorskip("faiss")
    ranker, folder = exported("poly-first_n_last")
    work = {"context": sentences[:2], "candidates": sentences[2:]}
    index = ranker.index(sentences, tmp_path / "index", faiss="hnsw,m=4")
    installed = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["faiss"]
    alone = command(RANK, unpacked, installed, str(folder), json.dumps(work), index.address)
    done = subprocess.run(alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert Path(report["file"]).is_relative_to(unpacked)
    expected = ranker.rank(**work)
    ranked = [Ranked(*hit) for hit in report["ranked"]]
    assert [(hit.index, hit.text) for hit in ranked] == [(hit.index, hit.text) for hit in expected]
    assert [hit.score for hit in ranked] == pytest.approx([hit.score for hit in expected], rel=1e-4, abs=1e-4)
    for hits, exactness in zip(report["found"], ("exact", None), strict=True):
        expected_hits = ranker.search(work["context"], index, exactness=exactness)
        assert [(hit[0], hit[4]) for hit in hits] == [(hit.id, hit.found) for hit in expected_hits]
        assert [hit[2] for hit in hits] == pytest.approx([hit.score for hit in expected_hits], rel=1e-4, abs=1e-4)
    assert sorted(report["built"]) == sorted(work["candidates"])
    assert report["messages"][0].endswith("ONNX graphs need none: load it with backend onnx")
    assert report["messages"][1].startswith("a ranker of ONNX graphs has no torch weights to save")
    served(unpacked, folder, work, expected, index.address, expected_hits)


@pytest.mark.long
def test_commands(unpacked, exported, sentences, tmp_path):
    """Commands that graphs can do run; others say what they need."""
    ranker, folder = exported("poly-first_n_last")
    index = ranker.index(sentences, tmp_path / "index")
    model = ("--model", str(folder), "--backend", "onnx")
    (tmp_path / "texts.txt").write_text("\n".join(sentences))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        alone = command(COMMAND, unpacked, PROJECT["dependencies"], *arguments)
        return subprocess.run(alone, capture_output=True, text=True, timeout=300)

    done = run("search", *model, "--index", index.address, "--context", "hi", "--json")
    assert done.returncode == 0, done.stderr
    assert [hit["id"] for hit in json.loads(done.stdout)["hits"]] == [hit.id for hit in ranker.search("hi", index)]
    new_index = tmp_path / "made"
    done = run("index", *model, "--candidates", str(tmp_path / "texts.txt"), "--out", str(new_index))
    assert done.returncode == 0, done.stderr
    assert [hit.id for hit in ranker.search("hi", new_index)] == [hit.id for hit in ranker.search("hi", index)]
    done = run("search", "--model", str(folder), "--index", index.address, "--context", "hi")
    assert (done.returncode, "load it with backend onnx (flag --backend)" in done.stderr) == (1, True)
    assert run("check", index.address).returncode == 0
    out = tmp_path / "vectors.npy"
    done = run("encode", *model, str(tmp_path / "texts.txt"), "--kind", "candidate", "--out", str(out))
    assert (done.returncode, len(np.load(out))) == (0, len(sentences))


def served(unpacked: Path, folder: Path, work: dict, expected: list[Ranked], index: str, hits: list[Hit]) -> None:
    """Checks the answers of a server."""
    pytest.importorskip("mcp")
    extras = PROJECT["optional-dependencies"]
    installed = PROJECT["dependencies"] + extras["serve"] + extras["mcp"] + extras["faiss"]
    options = ("serve", "--model", str(folder), "--backend", "onnx", "--port", "0", "--threads", "1", "--mcp", "http")
    options += ("--index", index)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(COMMAND, unpacked, installed, *options), **pipes) as process:
        try:
            lines = []
            while not (match := re.search(r"serving .* on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], "".join(lines)
            with httpx.Client(base_url=match[1], timeout=60) as client:
                for path in ("/", "/openapi.json", "/ready", "/metrics"):
                    assert client.get(path).status_code == 200
                body = {"messages": [{"role": "user", "content": turn} for turn in work["context"]]}
                answer = client.post("/v1/rerank", json={**body, "documents": work["candidates"]}).json()
                found_hits = client.post("/v1/search", json=body).json()["results"]
            assert [(result["id"], result["found"]) for result in found_hits] == [(hit.id, hit.found) for hit in hits]
            assert [result["score"] for result in found_hits] == pytest.approx(
                [hit.score for hit in hits], rel=1e-4, abs=1e-4
            )
            results = [(result["index"], result["relevance_score"]) for result in answer["results"]]
            assert [row for row, _ in results] == [hit.index for hit in expected]
            relevances = [1 / (1 + math.exp(-hit.score)) for hit in expected]
            assert [relevance for _, relevance in results] == pytest.approx(relevances, abs=1e-4)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            assert "Traceback" not in errors
        finally:
            process.kill()


def test_the_version_is_the_librarys():
    library = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert PROJECT["version"] == library["version"]
    assert PROJECT["requires-python"] == library["requires-python"]
    extras = library["optional-dependencies"]
    assert {*PROJECT["dependencies"]} <= {*library["dependencies"], *extras["onnx"]}
    for extra, requirements in PROJECT["optional-dependencies"].items():
        assert {*requirements} <= {*library["dependencies"], *extras[extra]}
