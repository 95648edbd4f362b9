"""The notebooks as pages of the documentation: a hook of mkdocs (mkdocs.yml)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page `notebooks/NAME.md` for each notebook, with its kept outputs."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        text = "\n\n".join(_blocks(nbformat.read(path, as_version=4)))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def _blocks(notebook: nbformat.NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield cell.source
            continue
        yield f"```python\n{cell.source}\n```"
        for output in cell.outputs:
            picture = output.get("data", {}).get("image/png")
            yield f"![](data:image/png;base64,{picture.strip()})" if picture else f"```text\n{output.text.strip()}\n```"
