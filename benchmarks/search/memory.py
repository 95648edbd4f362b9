"""Measures the peak memory of indexing and of searching, each in a separate process, with libraries and model.

Only the encoder's first layer runs, so that a million texts take minutes instead of hours. Embeddings, activations and
buffers are the full model's; the size of the missing layers' weights is reported (`layers_left_out_mb`). The
texts are real ones, repeated with a number appended. `texts_mb` is their file's size, `database_mb` the size of the
index's database of them, without and with words (MB = 10**6 bytes).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import call_alone, get_two_towers, read_memory_mb
from benchmarks.search.texts import iter_numbered
from polyencoder.encoding.protocol import Context
from polyencoder.index import candidates_from, open_index
from polyencoder.index.folder.files import DATABASE
from polyencoder.index.folder.index import FolderIndex
from polyencoder.ranker import Ranker


def measure(
    ranker: Ranker, texts: Sequence[str], contexts: Sequence[Context], folder: Path, *, rows: int, threads: int
) -> list[dict[str, Any]]:
    """A row for indexing `rows` candidates and one for searching them, below `folder`."""
    small, left_out_mb = _keep_first_layer(ranker)
    small.save_pretrained(folder / "model")
    with open(folder / "candidates.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in iter_numbered(texts, rows))
    about = {"case": "memory", "rows": rows, "layers_left_out_mb": left_out_mb}
    indexed = call_alone(_measure_work, "index", folder, threads=threads)
    searched = call_alone(_measure_work, "search", folder, contexts, threads=threads)
    return [about | indexed | _measure_sizes(folder), about | searched | {"contexts": len(contexts)}]


def _measure_work(work: str, folder: Path, contexts: Sequence[Context] = ()) -> dict[str, Any]:
    """Index, or search for the contexts, in this process."""
    ranker = Ranker.from_pretrained(folder / "model", device="cpu")
    before, start = read_memory_mb("VmHWM"), time.perf_counter()
    if work == "index":
        ranker.index(candidates_from(folder / "candidates.txt"), folder / "index")
    else:
        ranker.search_many(contexts, open_index(folder / "index", ranker))
    seconds = time.perf_counter() - start
    measured = {"work": work, "seconds": seconds, "before_mb": before, "peak_mb": read_memory_mb("VmHWM")}
    return measured if work == "index" else measured | {"mapped_mb": read_memory_mb("RssFile")}


def _measure_sizes(folder: Path) -> dict[str, float]:
    database = folder / "index" / DATABASE
    sizes = {"texts_mb": (folder / "candidates.txt").stat().st_size / 1e6, "database_mb": database.stat().st_size / 1e6}
    with closing(FolderIndex.open(folder / "index")) as index:
        index.add_words()
    return sizes | {"database_with_words_mb": database.stat().st_size / 1e6}


def _keep_first_layer(ranker: Ranker) -> tuple[Ranker, float]:
    """The ranker with one layer in each tower, and the size of the candidate tower's others, in MB."""
    model = copy.deepcopy(get_two_towers(ranker))
    parameters = (weights for layer in model.candidate_tower.get_layers()[1:] for weights in layer.parameters())
    size_mb = sum(weights.numel() * weights.element_size() for weights in parameters) / 2**20
    for tower in {model.candidate_tower, model.context_tower}:
        layers = tower.get_layers()
        del layers[1:]
        tower.model.config.num_hidden_layers = 1
    model.config.backbone["num_hidden_layers"] = 1
    return Ranker(model, ranker.text, device="cpu"), size_mb
