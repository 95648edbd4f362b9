"""`polyencoder index`: candidates into an index. `polyencoder update`: change one without encoding the rest again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Annotated, TypeVar, cast

import typer

from polyencoder.cli.contexts import read_questions
from polyencoder.cli.options import BackendName, Device, IndexPath, Model, ModelDtype, Progress, load, shows_bars
from polyencoder.data.readers import BadExamples, expand, lines
from polyencoder.errors import ConfigError
from polyencoder.index import FolderIndex, Index, candidates_from
from polyencoder.index.faiss.kinds import parse_faiss
from polyencoder.index.folder.build import SHARD_SIZE
from polyencoder.index.folder.shards import Share
from polyencoder.index.open import check_tuning, described, open_index
from polyencoder.index.vectors import VectorDtype

__all__ = ["index", "update"]

T = TypeVar("T")

_FILES = (
    "FILE, GLOB or - for standard input, comma-separated: one text per line, or JSON lines, CSV, TSV or "
    "Parquet with `text`, optionally `id`, and any metadata; plain, .gz, .bz2, .xz or .zst."
)
_SKIP = "Skip and count candidates that cannot be used."
_FAISS = (
    "Also build a FAISS index, for searches that do not score every candidate: auto, hnsw, ivf-flat, ivf-pq or flat, "
    "with parameters, as in hnsw,m=16,ef_construction=200,ef_search=256 or ivf-pq,nlist=4096,nprobe=64,pq_m=96."
)
_RECALL = (
    "With --faiss: the recall@10 that searches should reach, such as 0.99. It is measured against an exact scan on "
    "--contexts, and the cheapest effort and list length that reach it become the index's defaults."
)
_CONTEXTS = (
    "FILE, GLOB or -: realistic contexts to measure --recall with, in the form that polyencoder search reads. The "
    "default, texts of the index itself, is less telling."
)
_MILVUS = (
    "How Milvus searches: auto, as it chooses, or flat, comparing with every vector, so that results are certified."
)


def _info(folder: str | None) -> None:
    """What `--info FOLDER` says."""
    if folder is not None:
        typer.echo("\n".join(described(folder)))
        raise typer.Exit


def index(
    model: Model,
    candidates: Annotated[str, typer.Option("--candidates", "-c", help=f"The candidates: {_FILES}")],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="A folder, or milvus: and the address of a server or file."),
    ],
    dtype: Annotated[str, typer.Option(help="How vectors are stored: float32, float16, bfloat16 or int8.")] = "float32",
    faiss: Annotated[str | None, typer.Option(help=_FAISS)] = None,
    recall: Annotated[float | None, typer.Option(help=_RECALL)] = None,
    contexts: Annotated[str | None, typer.Option(help=_CONTEXTS)] = None,
    milvus: Annotated[str | None, typer.Option(help=_MILVUS)] = None,
    workers: Annotated[int, typer.Option(help="Encoding processes, each with its own copy of the model.")] = 1,
    shard_size: Annotated[int, typer.Option(help="Texts per file of vectors; a killed run loses at most one file.")] = (
        SHARD_SIZE
    ),
    skip_bad: Annotated[bool, typer.Option("--skip-bad-candidates", help=_SKIP)] = False,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
    progress: Progress = None,
    info: Annotated[
        str | None,
        typer.Option("--info", help="Describe this index and exit.", is_eager=True, callback=_info),
    ] = None,
) -> None:
    """Encode candidates into an index, once, for `polyencoder search` and for ParlAI's --index.

    Killed, and started again with the same command, it goes on from the last whole file of vectors. Processes that
    torchrun starts share the work.
    """
    share = Share.from_environment()
    bad = BadExamples(skip=skip_bad)
    check_tuning(recall, contexts, faiss=faiss)
    files = expand(candidates)  # looks for them before the model is loaded
    sample = _contexts(contexts)
    made = load(model, device=device, backend=backend, dtype=model_dtype).index(
        candidates_from(files, bad=bad),
        out,
        dtype=cast("VectorDtype", dtype),  # which is checked there
        faiss=faiss,
        recall=recall,
        contexts=sample,
        contexts_from=contexts or "",
        milvus=milvus,
        workers=workers,
        share=share,
        shard_size=shard_size,
        model_name=model,
        progress=shows_bars(progress),
    )
    if share.rank == 0:
        _report(out, made, bad=bad)


def update(
    model: Model,
    index: IndexPath,
    remove: Annotated[str | None, typer.Option(help="Remove these ids: FILE with one id per line, or -.")] = None,
    remove_id: Annotated[list[str] | None, typer.Option(help="Remove this id; repeatable.")] = None,
    update: Annotated[str | None, typer.Option(help="Replace texts or metadata of existing ids, from files.")] = None,
    add: Annotated[str | None, typer.Option(help=f"Add new candidates: {_FILES}")] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Rewrite the folder without removed candidates; drops any FAISS index.")
    ] = False,
    faiss: Annotated[str | None, typer.Option(help=_FAISS)] = None,
    recall: Annotated[float | None, typer.Option(help=_RECALL.replace("With --faiss: how", "How"))] = None,
    contexts: Annotated[str | None, typer.Option(help=_CONTEXTS)] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad-candidates", help=_SKIP)] = False,
    device: Device = None,
    model_dtype: ModelDtype = "float32",
    backend: BackendName = "torch",
) -> None:
    """Change an index: remove, update, add, compact, build its FAISS index and measure its recall, in this order.

    All of it is done, or after an error nothing. Searches go on meanwhile and find the index as it was.
    """
    if not (remove or remove_id or update or add or compact or faiss or recall is not None):
        raise ConfigError("nothing to do: give --add, --update, --remove, --remove-id, --compact, --faiss or --recall")
    bad, done = BadExamples(skip=skip_bad), Counter[str]()
    kind, parameters = (None, {}) if faiss is None else parse_faiss(faiss)
    check_tuning(recall, contexts, faiss=faiss or "the one that is there")
    sample = _contexts(contexts)
    removed, updated, added = (expand(files) if files else [] for files in (remove, update, add))
    opened = open_index(index, load(model, device=device, backend=backend, dtype=model_dtype))
    if (compact or faiss or recall is not None) and not isinstance(opened, FolderIndex):
        raise ConfigError(
            f"{index}: --compact, --faiss and --recall are for index folders; this engine does that by itself"
        )
    with opened.changing():
        if remove_id or removed:
            opened.remove(_counted(chain(remove_id or [], _ids(removed)), done, "removed"))
        if updated:
            opened.update(_counted(candidates_from(updated, bad=bad), done, "changed"))
        if added:
            opened.add(_counted(candidates_from(added, bad=bad), done, "added"))
        if isinstance(opened, FolderIndex):
            if compact:
                opened.compact()
            if kind:
                opened.build_faiss(kind, **parameters)
            if recall is not None:
                opened.tune(recall=recall, contexts=sample, source=contexts or "")
    if changes := ", ".join(f"{count:,} {what}" for what, count in done.items()):
        typer.echo(f"{index}: {changes}")
    _report(index, opened, bad=bad)


def _counted(items: Iterable[T], counts: Counter[str], what: str) -> Iterator[T]:
    """The items, and how many they are under `what`."""
    for item in items:
        counts[what] += 1
        yield item


def _ids(paths: list[str]) -> Iterator[str]:
    return (line.strip() for path in paths for _, line in lines(path) if line.strip())


def _contexts(files: str | None) -> list[list[str]] | None:
    return None if files is None else [question.turns for question in read_questions(expand(files))]


def _report(where: str, index: Index, *, bad: BadExamples) -> None:
    if summary := bad.summary():
        typer.echo(f"polyencoder: {summary}", err=True)
    typer.echo(f"{where}: {len(index):,} candidates")
    if isinstance(index, FolderIndex) and (faiss := index.meta.faiss) is not None and faiss.tuned is not None:
        typer.echo(f"{where}: {faiss.tuned}")
