"""Measures the peak memory of indexing and of searching, each in a separate process, with libraries and model.

Only the encoder's first layer runs, so that a million texts take minutes instead of hours. Embeddings, activations and
buffers are the full model's; the size of the missing layers' weights is reported (`layers_left_out_mb`). The
texts are real ones, repeated with a number appended. `texts_mb` is their file's size, `database_mb` the size of the
index's database of them, without and with words (MB = 10**6 bytes).
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.common import build_parser, get_two_towers, measure_alone, read_mapped_mb, read_peak_mb, use_threads
from benchmarks.search.texts import iter_numbered
from polyencoder.encoding.protocol import Context
from polyencoder.index import candidates_from, open_index
from polyencoder.index.folder.files import DATABASE
from polyencoder.index.folder.index import FolderIndex
from polyencoder.ranker import Ranker

Work = dict[str, Any]


def measure(
    ranker: Ranker, texts: Sequence[str], contexts: Sequence[Context], folder: Path, *, rows: int, threads: int
) -> list[dict[str, Any]]:
    """A row for indexing `rows` candidates and one for searching them, below `folder`."""
    small, left_out_mb = _keep_first_layer(ranker)
    small.save_pretrained(folder / "model")
    with open(folder / "candidates.txt", "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for text in iter_numbered(texts, rows))
    (folder / "contexts.json").write_text(json.dumps(list(contexts)), encoding="utf-8")
    flags = ["--folder", str(folder), "--threads", str(threads)]
    indexed, searched = (
        {"case": "memory", "rows": rows, "layers_left_out_mb": left_out_mb}
        | measure_alone(__name__, *flags, "--work", work, what=f"memory, {work}")
        for work in ("index", "search")
    )
    return [indexed | _measure_sizes(folder), searched]


def main(arguments: Sequence[str] | None = None) -> None:
    """Index or search in this process; started by `measure`."""
    parser = build_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="with the model, the candidates and the contexts")
    parser.add_argument("--work", choices=("index", "search"), required=True)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    print(json.dumps(_index(flags.folder) if flags.work == "index" else _search(flags.folder)))


def _index(folder: Path) -> dict[str, Any]:
    ranker = Ranker.from_pretrained(folder / "model", device="cpu")
    loaded, start = read_peak_mb(), time.perf_counter()
    ranker.index(candidates_from(folder / "candidates.txt"), folder / "index")
    return {"work": "index", "seconds": time.perf_counter() - start, "before_mb": loaded, "peak_mb": read_peak_mb()}


def _search(folder: Path) -> dict[str, Any]:
    ranker = Ranker.from_pretrained(folder / "model", device="cpu")
    contexts = json.loads((folder / "contexts.json").read_text(encoding="utf-8"))
    loaded, start = read_peak_mb(), time.perf_counter()
    ranker.search_many(contexts, open_index(folder / "index", ranker))
    done = {"work": "search", "seconds": time.perf_counter() - start, "before_mb": loaded, "peak_mb": read_peak_mb()}
    return done | {"contexts": len(contexts), "mapped_mb": read_mapped_mb()}


def _measure_sizes(folder: Path) -> dict[str, float]:
    database = folder / "index" / DATABASE
    sizes = {"texts_mb": (folder / "candidates.txt").stat().st_size / 1e6, "database_mb": database.stat().st_size / 1e6}
    with closing(FolderIndex.open(folder / "index")) as index:
        index.add_words()
    return sizes | {"database_with_words_mb": database.stat().st_size / 1e6}


def _keep_first_layer(ranker: Ranker) -> tuple[Ranker, float]:
    """The ranker with one layer in each tower, and the size of the candidate tower's others, in MB."""
    model = copy.deepcopy(get_two_towers(ranker))
    parameters = (one for layer in model.candidate_tower.get_layers()[1:] for one in layer.parameters())
    size_mb = sum(one.numel() * one.element_size() for one in parameters) / 2**20
    for tower in {model.candidate_tower, model.context_tower}:
        layers = tower.get_layers()
        del layers[1:]
        tower.model.config.num_hidden_layers = 1
    model.config.backbone["num_hidden_layers"] = 1
    return Ranker(model, ranker.text, device="cpu"), size_mb


if __name__ == "__main__":
    main()
