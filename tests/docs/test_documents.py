"""Every command and piece of Python in README, docs/ and the skill does what the reader is told, on small data."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.docs.running import Failure, Runner
from tests.docs.snippets import Command, Snippet, commands, read_snippets
from tests.docs.stand_ins import MODELS, VARIABLES, make_files, models_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "polyencoder" / "SKILL.md"
DOCUMENTS = [ROOT / "README.md", SKILL, *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [snippet for document in DOCUMENTS for snippet in read_snippets(document)]
BLOCKS = [list(group) for _, group in groupby((s for s in SNIPPETS if not s.not_run), key=lambda s: s.document)]
# Their blocks take three seconds or more, and of what they do others have something.
LONG = ["benchmarks/accuracy.md", "checkpoints/export.md", "coming-from/parlai.md", "convert.md", "graded.md"]
LONG += ["parlai.md", "index.md", "SKILL.md"]
LONG += ["pretraining.md", "serving/frameworks.md", "serving/without-torch.md", "tasks.md", "vectors.md"]
LONG += [f"training/{name}.md" for name in ("encoders", "hard-negatives", "late-interaction")]
LONG += [f"training/{name}.md" for name in ("long-runs", "python", "settings", "several-gpus")]


@pytest.fixture(scope="module")
def put(tmp_path_factory):
    """(text, folder): the folder has the files of every document, and the models that the text names.

    All are made once for all documents.
    """
    source = tmp_path_factory.mktemp("files")
    make_files(source)
    files = [*source.iterdir()]
    runner, models = Runner(source, dict(VARIABLES)), set()

    def put(text: str, folder: Path) -> None:
        for path in files:
            _copy(path, folder / path.name)
        for name in models_in(text):
            if name not in models:
                runner.prepare(Command(0, tuple(MODELS[name].split())))
                models.add(name)
            for path in [source / name, *source.glob(f"{name}.*")]:
                _copy(path, folder / path.relative_to(source))

    return put


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, to)
    elif not to.exists():
        shutil.copy(path, to)


def name_of(document: Path) -> str:
    """The path of a document in docs/."""
    docs = ROOT / "docs"
    return document.relative_to(docs).as_posix() if document.is_relative_to(docs) else document.name


def run_of(snippets: list[Snippet]) -> Any:
    """A parameter of the test: all the blocks of one document."""
    name = name_of(snippets[0].document)
    return pytest.param(snippets, id=name, marks=[pytest.mark.long] if name in LONG else [])


@pytest.mark.parametrize("snippets", [*map(run_of, BLOCKS)])
def test_the_snippets_of_a_document_run_in_order(snippets, tmp_path, request, put):
    folder = tmp_path / "project"
    folder.mkdir()
    put("".join(snippet.text for snippet in snippets), folder)
    variables = dict(VARIABLES)
    runner = Runner(folder, variables)
    request.addfinalizer(runner.close)
    failures = []
    for snippet in snippets:
        if snippet.language == "python":
            steps = [(snippet.line, partial(runner.run_python, snippet.text))]
        else:
            steps = [(c.line, partial(runner.run, c)) for c in commands(snippet, variables, folder)]
        for line, step in steps:
            try:
                step()
            except Failure as failure:
                failures.append(f"{name_of(snippet.document)}:{line}: {failure}")
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if s.not_run], ids=lambda snippet: snippet.location)
def test_what_is_not_run_has_a_reason(snippet):
    pytest.skip(f"{snippet.location}: {snippet.not_run}")  # so the list of them ends the test run
