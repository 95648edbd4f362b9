"""`polyencoder index`: builds an index of candidates. `polyencoder update`: changes one, encoding only new texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from polyencoder.checks import hide_password
from polyencoder.cli.shared.filters import read_filter
from polyencoder.cli.shared.loading import load, load_named
from polyencoder.cli.shared.output import ProgressBars, say
from polyencoder.data.contexts import read_questions
from polyencoder.data.readers import BadExamples, expand, iter_lines, open_bytes
from polyencoder.errors import ConfigError, InputError, UsageError
from polyencoder.index import Candidate, Fingerprints, candidates_from
from polyencoder.index.build_options import IndexOptions
from polyencoder.index.candidates import CandidateColumns, check_beginnings
from polyencoder.index.faiss.kinds import check_parameters, parse_faiss
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import MakerSettings, RankerSettings
from polyencoder.settings.fields import Files, OneIndex
from polyencoder.settings.metadata import Needs, Without

if TYPE_CHECKING:
    from polyencoder.index import Index
    from polyencoder.ranker import Ranker

index = App(name="index")


@settings()
class FaissSettings(Settings):
    """The FAISS index beside the vectors of a folder."""

    faiss: str | None = None
    """Also build a FAISS index, for searches that do not score every candidate: auto, hnsw, ivf-flat or ivf-pq, with
    parameters, as in hnsw,m=16,ef_construction=200,ef_search=256 or ivf-pq,nlist=4096,nprobe=64,pq_m=96."""
    recall: float | None = None
    """The recall@10 that searches with FAISS should reach, such as 0.99. It is measured against an exact scan on
    --contexts, and the cheapest effort and list length that reach it become the index's defaults."""
    contexts: Files | None = None
    """FILE, GLOB or -: realistic contexts to measure --recall with, in the form that polyencoder search reads. The
    default, texts of the index itself, is less telling."""

    def read_contexts(self) -> list[list[str]] | None:
        """Reads the contexts that the recall is measured with; None for texts of the index."""
        return None if self.contexts is None else [question.turns for question in read_questions(expand(self.contexts))]


@settings()
class IndexSettings(Settings):
    """Settings of a new index: candidates, place and format."""

    out: Annotated[str, Parameter(alias="-o")]
    """A folder, milvus: and the address of a server or file, or postgres://USER@HOST:PORT/DATABASE#NAME."""
    model: MakerSettings = field(default_factory=MakerSettings)
    candidates: Annotated[Files | None, Parameter(alias="-c"), Without("vectors")] = None
    """The candidates: FILE, GLOB or - for standard input, comma-separated: one text per line, or JSON lines, CSV, TSV
    or Parquet with `text`, optionally `id`, and any metadata, or with all columns of a layout for training; plain, .gz,
    .bz2, .xz or .zst."""
    columns: Annotated[CandidateColumns, Needs("candidates")] = field(default_factory=CandidateColumns)
    vectors: Annotated[tuple[str, ...], Parameter(consume_multiple=1, allow_leading_hyphen=False)] = ()
    """Candidates whose vectors exist, which are not encoded: FILE or GLOB, comma-separated: Parquet or JSON lines with
    `text`, `vector`, optionally `id`, and any metadata."""
    fingerprint: Annotated[str | None, Needs("vectors"), Without("model")] = None
    """In place of the model that made the vectors: its fingerprint, or a name for an encoder that is not here (default:
    what the files say)."""
    options: IndexOptions = field(default_factory=IndexOptions)
    faiss: FaissSettings = field(default_factory=FaissSettings)
    skip_bad_candidates: bool = False
    """Skip and count candidates that cannot be used."""
    progress: ProgressBars = None


@index.default
def index_candidates(*, settings: IndexSettings) -> None:
    """Encode candidates into an index, once, for `polyencoder search` and for ParlAI's --index.

    A killed run continues from the last whole file of vectors when the same command is started again. With
    --vectors nothing is encoded.
    """
    from polyencoder.index.open import check_tuning, make_index
    from polyencoder.index.precomputed import vectors_from

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError("polyencoder index starts its processes itself, with --workers: leave out torchrun")
    faiss = settings.faiss
    bad = BadExamples(skip=settings.skip_bad_candidates, argument="skip_bad_candidates")
    check_tuning(faiss.recall, faiss.contexts, faiss=faiss.faiss)
    files = _find_files(settings)  # looks for them before the model is loaded
    contexts = faiss.read_contexts()
    precomputed = bool(settings.vectors)
    columns, split = settings.columns, settings.options.split is not None
    if not precomputed:
        check_beginnings(files, skip=settings.skip_bad_candidates, columns=columns, split=split)
    with make_index(
        vectors_from(files, bad=bad) if precomputed else candidates_from(files, columns=columns, split=split, bad=bad),
        settings.out,
        _load_maker(settings, files),
        replace(settings.options, faiss=faiss.faiss, recall=faiss.recall),
        contexts=contexts,
        contexts_from=faiss.contexts or "",
        model_name=settings.model.model or "",
        progress=settings.progress,
    ) as new_index:
        _report(settings.out, new_index, bad=bad, built=faiss.faiss is not None)


def _find_files(settings: IndexSettings) -> list[str]:
    """The files of candidates, or of their vectors."""
    if settings.vectors:
        return expand(settings.vectors)
    if settings.candidates is None:
        raise UsageError("give --candidates, which are encoded, or --vectors, which exist")
    if settings.model.model is None:
        raise UsageError("give --model, which encodes the candidates")
    return expand(settings.candidates)


def _load_maker(settings: IndexSettings, files: list[str]) -> Ranker | Fingerprints:
    """The model that encodes the candidates or made their vectors, or its fingerprints."""
    from polyencoder.index.precomputed import read_fingerprints

    stated = read_fingerprints(files) if settings.vectors else None
    if settings.model.model is not None:
        ranker = load_named(settings.model.model, settings.model)
        if stated is not None and not stated.fits(Fingerprints.of(ranker)):
            raise InputError(f"{files[0]}: made by another model (fingerprint {stated.model}) than --model: give that")
        return ranker
    if settings.fingerprint is not None:
        if stated is not None and not stated.fits(Fingerprints(settings.fingerprint)):
            raise InputError(f"{files[0]}: says that the fingerprint of its vectors is {stated.model}: give no other")
        return Fingerprints(settings.fingerprint)
    if stated is None:
        raise ConfigError(
            "the files do not say which encoder made the vectors: give it as --model, or its --fingerprint, which may "
            "be any name that tells it from others"
        )
    return stated


@index.command(name="--info")
def info(index: str, /) -> None:
    """Describe an index and exit."""
    from polyencoder.index.open import describe_index

    say("\n".join(describe_index(index)))


@settings()
class UpdateSettings(Settings):
    """Changes of an index."""

    model: RankerSettings
    index: OneIndex
    """The index: its folder, or its address (milvus:... or postgres://...)."""
    remove: Files | None = None
    """Remove these ids: FILE with one id per line, or -."""
    remove_id: tuple[str, ...] = ()
    """Remove this id; repeatable."""
    remove_where: tuple[str, ...] = ()
    """Remove the candidates whose metadata pass this test, as the filter of polyencoder search; repeatable."""
    update: Files | None = None
    """Replace texts or metadata of existing ids, from files."""
    add: Files | None = None
    """Add new candidates, from files as those of polyencoder index."""
    columns: CandidateColumns = field(default_factory=CandidateColumns)
    compact: bool = False
    """Rewrite the folder without removed candidates; drops any FAISS index."""
    words: bool = False
    """Add the words of all texts, for polyencoder search --hybrid, unless the folder has them. Nothing is encoded."""
    faiss: FaissSettings = field(default_factory=FaissSettings)
    trust_faiss: Annotated[bool, Without("faiss")] = False
    """Trust the FAISS index that another installation built: FAISS is not safe against files made to harm."""
    skip_bad_candidates: bool = False
    """Skip and count candidates that cannot be used."""


def update(*, settings: UpdateSettings) -> None:
    """Change an index: remove, update, add, compact, add words, build its FAISS index and measure its recall.

    All of it is done, or after an error nothing. Until then searches find the old index.
    """
    from polyencoder.index import FolderIndex
    from polyencoder.index.open import check_tuning, open_index

    where, faiss = settings.index, settings.faiss
    folder_changes = settings.explicit & {"compact", "words", "faiss", "recall", "trust_faiss"}
    if not folder_changes | settings.explicit & {"remove", "remove_id", "remove_where", "update", "add"}:
        raise UsageError(
            "nothing to do: give --add, --update, --remove, --remove-id, --remove-where, --compact, --words, --faiss, "
            "--recall or --trust-faiss"
        )
    kind, parameters = (None, {}) if faiss.faiss is None else parse_faiss(faiss.faiss)
    check_tuning(faiss.recall, faiss.contexts, faiss=faiss.faiss or "the one that is there")
    contexts = faiss.read_contexts()
    removed, updated, added = (
        expand(files) if files else [] for files in (settings.remove, settings.update, settings.add)
    )
    unwanted = read_filter(settings.remove_where, flag="--remove-where")
    columns = settings.columns
    check_beginnings([*updated, *added], skip=settings.skip_bad_candidates, columns=columns, split=True)
    bad = BadExamples(skip=settings.skip_bad_candidates, argument="skip_bad_candidates")
    done, had_words = dict[str, int](), True
    had_faiss = False
    with open_index(where, load(settings.model)) as opened:
        if folder_changes and not isinstance(opened, FolderIndex):
            raise ConfigError(
                f"{hide_password(where)}: --compact, --words, --faiss, --recall and --trust-faiss are for folders"
            )
        if isinstance(opened, FolderIndex) and kind:  # before anything is encoded
            check_parameters(kind, parameters, dim=opened.meta.dim)
        read = partial(candidates_from, columns=columns, split=opened.split is not None, bad=bad)
        with opened.changing():
            if settings.remove_id or removed:
                done["removed"] = _remove(opened, settings.remove_id, removed)
            if unwanted is not None:
                done["removed"] = done.get("removed", 0) + opened.remove_where(unwanted)
            if updated:
                done |= _count_changes(opened.update, read(updated), "changed", "unchanged")
            if added:
                done |= _count_changes(opened.add, read(added), "added", "there already")
            if isinstance(opened, FolderIndex):
                had_faiss = opened.meta.faiss is not None
                if settings.compact:
                    done["removed vectors freed"] = opened.compact()
                if settings.words:
                    had_words = not opened.add_words()
                if kind:
                    opened.build_faiss(kind, **parameters)
                if settings.trust_faiss:
                    opened.trust_faiss()
                if faiss.recall is not None:
                    opened.tune(recall=faiss.recall, contexts=contexts, source=faiss.contexts or "")
        changes = [f"{count:,} {what}" for what, count in done.items()]
        if settings.words:
            changes.append("words there already" if had_words else f"words of {opened.count_texts():,} texts added")
        if had_faiss and isinstance(opened, FolderIndex) and opened.meta.faiss is None:
            changes.append("FAISS index dropped")
        if settings.trust_faiss:
            changes.append("FAISS index trusted")
        if changes:
            say(f"{hide_password(where)}: {', '.join(changes)}")
        _report(where, opened, bad=bad, built=kind is not None)


def _count_changes(
    change: Callable[[Iterable[Candidate]], int], candidates: Iterator[Candidate], changed: str, unchanged: str
) -> dict[str, int]:
    """Makes a change; returns the numbers of candidates that it changed, and that were equal before."""
    num_read = 0

    def count_candidates() -> Iterator[Candidate]:
        nonlocal num_read
        for candidate in candidates:
            num_read += 1
            yield candidate

    counts = {changed: change(count_candidates())}
    return counts | ({unchanged: num_read - counts[changed]} if num_read > counts[changed] else {})


def _remove(index: Index, ids: Iterable[str], paths: list[str]) -> int:
    """Removes these ids, and the ids in files; an unknown id of a file is named with its line."""
    locations: dict[str, str] = {}
    for path in paths:
        with open_bytes(path) as file:
            locations |= {line.strip(): f"{file.path}, line {n}" for n, line in iter_lines(file) if line.strip()}
    try:
        return index.remove([*ids, *locations])
    except InputError:
        present = index.get_texts([*locations, *(f"{id_}#1" for id_ in locations)])  # candidates, and documents
        for id_, where in locations.items():
            if id_ not in present and f"{id_}#1" not in present:
                raise InputError(f"{where}: no candidate of the index has the id {id_!r}") from None
        raise


def _report(where: str, index: Index, *, bad: BadExamples, built: bool) -> None:
    """Prints the contents of the index; `built` says that its FAISS index is new."""
    from polyencoder.index import FolderIndex

    if summary := bad.summarize():
        say(f"polyencoder: {summary}", err=True)
    say(f"{hide_password(where)}: {len(index):,} candidates")
    if isinstance(index, FolderIndex) and (faiss := index.meta.faiss) is not None:
        if built:
            say(f"{where}: {faiss}")
        if faiss.tuned is not None:
            say(f"{where}: {faiss.tuned}")
