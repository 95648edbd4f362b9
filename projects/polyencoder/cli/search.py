"""`polyencoder search`: searches an index for contexts from a flag, a file or standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from polyencoder.cli.shared.filters import read_filter
from polyencoder.cli.shared.loading import describe_left_out, load, load_reranker
from polyencoder.cli.shared.output import drop_none, join_white_space, say
from polyencoder.data.contexts import Question, read_questions
from polyencoder.data.loader import iter_batches
from polyencoder.data.readers import expand
from polyencoder.errors import InputError
from polyencoder.index.entries import convert_value
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.settings.base import Settings, settings
from polyencoder.settings.common import RankerSettings
from polyencoder.settings.fields import Files, OneIndex
from polyencoder.settings.metadata import Without
from polyencoder.text.dialogue import SystemMessages
from polyencoder.validation import Count

if TYPE_CHECKING:
    from polyencoder.index.searcher import Searcher


@settings()
class SearchSettings(Settings):
    """Settings of `polyencoder search`: the contexts and the search."""

    model: RankerSettings
    index: OneIndex
    """The index: its folder, or its address (milvus:... or postgres://...)."""
    context: tuple[str, ...] = ()
    """A turn of the context; repeat it, oldest turn first."""
    contexts: Annotated[Files, Without("context")] = "-"
    """FILE, GLOB or - for standard input: one context per line; a line that begins with { is JSON with `context`, a
    text or a list of turns. Also .jsonl, CSV and Parquet."""
    system: SystemMessages = "leave-out"
    """The system messages of chats: left out, or the persona before the conversation."""
    options: SearchOptions = field(default_factory=SearchOptions)
    filter: tuple[str, ...] = ()
    """A test of the metadata: lang=en, 'year>=2020' or 'topic!=returns' (also <=, >, <); repeatable. Values of one key
    after = are alternatives; all other tests must hold."""
    rerank: str | None = None
    """A cross-encoder to rerank the first results."""
    rerank_k: Count | None = None
    """How many results are reranked (default: 50 by a cross-encoder, 100 by a late-interaction encoder itself)."""
    keep_turns: bool = False
    """Also return candidates that repeat a turn of their context (ignoring case and spacing)."""
    as_json: Annotated[bool, Parameter(name="--json")] = False
    """Print one JSON object per context and line."""
    timing: bool = False
    """Print on standard error how long each step took."""
    batch_size: Count = 32
    """Contexts per batch."""


def search(*, settings: SearchSettings) -> None:
    """Print the best candidates for each context, with their scores and how they were found."""
    from polyencoder.index.open import open_index
    from polyencoder.index.searcher import Searcher

    batch_size = settings.batch_size
    if settings.context:
        questions = iter([Question(list(settings.context))])
    else:
        questions = read_questions(expand(settings.contexts), system=settings.system)
        if settings.contexts == "-" and sys.stdin.isatty():
            batch_size = 1  # who types wants an answer to each line
    ranker = load(settings.model)
    with open_index(settings.index, ranker) as index:
        searcher = Searcher(
            ranker,
            index,
            replace(settings.options, filter=read_filter(settings.filter)),
            reranker=load_reranker(settings.rerank, settings.model),
            rerank_k=settings.rerank_k,
            keep_turns=settings.keep_turns,
        )
        for batch in iter_batches(questions, batch_size):
            _print_hits(searcher, batch, as_json=settings.as_json)
    if searcher.contexts == 0:
        where = "no context on standard input" if settings.contexts == "-" else f"{settings.contexts}: no context in it"
        raise InputError(where)
    if note := describe_left_out(searcher.left_out):
        say(f"polyencoder: {note}", err=True)
    if settings.timing:
        means = {step: 1000 * seconds / searcher.contexts for step, seconds in searcher.seconds.items()}
        steps = ", ".join(f"{step} {milliseconds:.2f}" for step, milliseconds in means.items())
        say(f"{searcher.contexts:,} contexts, {sum(means.values()):.2f} ms each: {steps}", err=True)


def _print_hits(searcher: Searcher, batch: Sequence[Question], *, as_json: bool) -> None:
    results = searcher([question.turns for question in batch])
    for question, hits, improbable in zip(batch, results, searcher.improbable, strict=True):
        if as_json:
            say(_format_json(question, hits, improbable))
        else:
            note = _explain_choice(searcher, hits[0]) if hits else _explain_none(searcher, improbable)
            say(_format_text(question, hits, note))


def _explain_none(searcher: Searcher, improbable: Hit | None) -> str:
    """The reason why a context has no hit."""
    if improbable is not None:
        probable = f"{improbable.probability:.1%}"
        return (
            f"no candidate is probable enough; the best is right with {probable}: {join_white_space(improbable.text)}"
        )
    if searcher.top_k == 0:
        return "the index is empty"
    if searcher.options.filter and searcher.among == 0:
        return "no candidate passes the filter"
    if searcher.options.words_only:
        return "no candidate has a word of the context, except its turns (--keep-turns keeps these)"
    return "every candidate is a turn of the context (--keep-turns keeps these)"


def _format_json(question: Question, hits: list[Hit], improbable: Hit | None) -> str:
    records = [drop_none(hit._asdict()) for hit in hits]
    left_out = None if improbable is None else drop_none(improbable._asdict())
    record = {"context": question.turns, "hits": records, "id": question.id, "best_left_out": left_out}
    return json.dumps(drop_none(record), ensure_ascii=False, default=convert_value)


def _explain_choice(searcher: Searcher, hit: Hit) -> str:
    """From how many candidates the hits were chosen; empty if they are the best."""
    by = {"--group-by": searcher.options.group_by, "--diversity": searcher.options.diversity}
    flags = " and ".join(flag for flag, value in by.items() if value)
    return "" if hit.considered is None else f"chosen from the best {hit.considered:,} ({flags})"


def _format_text(question: Question, hits: list[Hit], note: str) -> str:
    rows = [f"> {join_white_space(' / '.join(question.turns))}"]
    for rank, hit in enumerate(hits, start=1):
        reranked = "" if hit.rerank_score is None else f"  {hit.rerank_score:9.4f} (of {hit.score:.4f})"
        score = reranked or f"  {hit.score:9.4f}"
        likely = "" if hit.probability is None else f"  {hit.probability:4.0%}"
        words = "" if hit.word_score is None else f"  {hit.word_score:7.2f} by words"
        rows.append(f"{rank:>4}{score}{likely}{words}  {hit.found}  {hit.id}  {join_white_space(hit.text)}")
    if note:
        rows.append(f"  {note.strip()}")
    return "\n".join(rows)
