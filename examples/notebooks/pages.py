"""Hooks of mkdocs (mkdocs.yml): the notebooks as pages, and links to source files, which the site does not have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_SOURCE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:projects|examples)/[^)]*\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page `notebooks/NAME.md` for each notebook, with its kept outputs."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        text = "\n\n".join(_iter_blocks(json.loads(path.read_text(encoding="utf-8"))))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Keeps only the text of links to files of the repository, which lead nowhere on the site."""
    return _SOURCE.sub(r"\1", markdown)


def _iter_blocks(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"])  # a text, or its lines
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            picture = "".join(output.get("data", {}).get("image/png", ""))
            text = "".join(output.get("text", "")).strip()
            yield f"![](data:image/png;base64,{picture.strip()})" if picture else f"```text\n{text}\n```"
