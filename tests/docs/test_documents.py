"""Every command and every piece of Python in README and docs/ does what the reader is told, on small data."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from tests.docs.running import Failure, Runner
from tests.docs.snippets import Command, commands, read_snippets
from tests.docs.stand_ins import MODELS, VARIABLES, make_files, models_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [snippet for document in DOCUMENTS for snippet in read_snippets(document)]
RUN = [list(group) for _, group in groupby((s for s in SNIPPETS if not s.not_run), key=lambda s: s.document)]


@pytest.fixture(scope="module")
def put_models(tmp_path_factory):
    """(names, folder): the folder has these models, each of which is trained once for all documents."""
    place = tmp_path_factory.mktemp("models")
    make_files(place)
    runner, made = Runner(place, dict(VARIABLES)), set()

    def put(names: list[str], folder: Path) -> None:
        for name in names:
            if name not in made:
                runner.prepare(Command(0, tuple(MODELS[name].split())))
                made.add(name)
            for path in [place / name, *place.glob(f"{name}.*")]:
                if path.is_dir():
                    shutil.copytree(path, folder / path.name)
                else:
                    shutil.copy(path, folder)

    return put


@pytest.mark.parametrize("snippets", RUN, ids=lambda snippets: snippets[0].document.name)
def test_the_snippets_of_a_document_run_in_order(snippets, tmp_path, request, put_models):
    folder = tmp_path / "project"
    folder.mkdir()
    make_files(folder)
    variables = dict(VARIABLES)
    runner = Runner(folder, variables)
    request.addfinalizer(runner.close)
    put_models(models_in("".join(snippet.text for snippet in snippets)), folder)
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
                failures.append(f"{snippet.document.name}:{line}: {failure}")
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


@pytest.mark.parametrize("snippet", [s for s in SNIPPETS if s.not_run], ids=lambda snippet: snippet.place)
def test_what_is_not_run_has_a_reason(snippet):
    pytest.skip(f"{snippet.place}: {snippet.not_run}")  # so the list of them ends the test run
