"""The notebooks as pages of the documentation: a hook of mkdocs (mkdocs.yml)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds a page `notebooks/NAME.md` for each notebook, with its kept outputs."""
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        text = "\n\n".join(_blocks(json.loads(path.read_text(encoding="utf-8"))))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def _blocks(notebook: dict[str, Any]) -> Iterator[str]:
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
