"""The notebooks run, with a real encoder, and the outputs that they keep are what comes out."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.examples.notebooks import NOTEBOOKS, executed

ROOT = Path(__file__).parents[2]
A_MACHINE = re.compile(r"site-packages|/(?:home|root|tmp|usr|opt|mnt|Users)/")


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def list_outputs(cell: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """The kinds of a cell's outputs; with what they print, unless the cell has the tag `varies`: figures of a model."""
    varies = "varies" in cell.metadata.get("tags", [])
    kinds = [(output.get("name", output.output_type), *sorted(output.get("data", {}))) for output in cell.outputs]
    return (
        kinds if varies else [(*kind, output.get("text", "")) for kind, output in zip(kinds, cell.outputs, strict=True)]
    )


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_kept_outputs_are_what_comes_out(path, minilm_folder):
    saved = nbformat.read(path, as_version=4)
    for old, new in zip(code_cells(saved), code_cells(executed(path, encoder=str(minilm_folder))), strict=True):
        assert list_outputs(old) == list_outputs(new), old.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_name_no_machine(path):
    cells = code_cells(nbformat.read(path, as_version=4))
    assert [cell.source for cell in cells if "print(" in cell.source and not cell.outputs] == []
    assert {output.get("name") for cell in cells for output in cell.outputs} <= {"stdout", None}
    assert A_MACHINE.search(path.read_text(encoding="utf-8")) is None


def test_every_notebook_is_in_the_docs():
    page, site = ((ROOT / name).read_text(encoding="utf-8") for name in ("docs/examples.md", "mkdocs.yml"))
    assert len(NOTEBOOKS) == 2
    for notebook in NOTEBOOKS:
        assert f"notebooks/{notebook.stem}.md" in page
        assert f"notebooks/{notebook.stem}.md" in site
