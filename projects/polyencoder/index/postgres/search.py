"""Search in PostgreSQL: a `statement` for each context, whose results `certificate` proves, and this library scores.

pgvector's products are float4, so its scores have rounding errors, which a margin allows for: the result, a few more
than k rows, is scored again here. So the results, their order and their ties are those of a scan in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import torch

from polyencoder.index.base import check_contexts
from polyencoder.index.certificate import Shortlist, search_shortlists
from polyencoder.index.faiss.groups import TOLERANCE, group_means
from polyencoder.index.faiss.lists import LONGEST_LIST
from polyencoder.index.filters import Filter
from polyencoder.index.hits import Hit
from polyencoder.index.options import SearchOptions
from polyencoder.index.postgres.meta import MOST_LISTS
from polyencoder.index.postgres.rows import condition
from polyencoder.index.postgres.statement import statement
from polyencoder.index.postgres.table import Table, literal, vectors_of
from polyencoder.index.rescoring import Rescoring
from polyencoder.index.words import query_words
from polyencoder.scoring import ContextEncoding, TopK, score, search
from polyencoder.scoring.exact import at_least_fp32, scale_of

_SHORTEST_LIST = 256
_SCAN_ROWS = 8192  # if so few pass the filter, scoring all is faster than an index
_MOST_EF = 1000  # of pgvector


def by_vectors(
    table: Table,
    contexts: ContextEncoding,
    options: SearchOptions,
    *,
    attention: str,
    floors: Sequence[float] | None = None,
) -> list[list[Hit]]:
    """The best `top_k` rows of each context; of equal scores the lowest key comes first.

    `floors` are those of `Index._search`.
    """
    check_contexts(contexts, dim=table.meta.dim)
    contexts = contexts.to(dtype=at_least_fp32(contexts.vectors.dtype))
    flat, given = table.meta.kind == "flat", options.exactness
    most = max(options.k(1 << 62), _SCAN_ROWS) + 1
    available = table.count(options.filter, most=most)
    if (k := options.k(available)) == 0 or contexts.batch_size == 0:
        return [[] for _ in range(contexts.batch_size)]
    length = options.list_length or max(4 * k, _SHORTEST_LIST)
    few = options.filter is not None and available <= _SCAN_ROWS
    scans = few or (flat and not (given or options.list_length))
    scans |= length > LONGEST_LIST and not options.list_length
    search = PostgresSearch(
        table,
        contexts,
        k=k,
        filter=options.filter,
        attention=attention,
        exact_lists=flat,
        tolerance=None if flat else TOLERANCE if options.tolerance is None else options.tolerance,
    )
    _plan(table, length=length, effort=options.effort)
    answers = search_shortlists(
        search,
        exactness="exact" if scans else given or "approximate",
        length=min(length, available),
        longest=max(length, LONGEST_LIST, 2 * k),
        floors=floors,
    )
    return [
        [
            Hit(row.id, row.text, score, row.metadata, answer.found)
            for score, number in zip(answer.scores.tolist(), answer.rows.tolist(), strict=True)
            for row in [search.rows[number]]
        ]
        for answer in answers
    ]


def _plan(table: Table, *, length: int, effort: int | None) -> None:
    """Sets how PostgreSQL finds neighbours in this transaction."""
    kind, parameters = table.meta.kind, table.meta.parameters
    if kind == "flat":
        table.session.set({"enable_indexscan": "off"})  # or a foreign index would make lists approximate
        return
    if kind == "hnsw":
        ef = min(_MOST_EF, max(effort or 0, length))
        settings = {"hnsw.ef_search": ef, "hnsw.iterative_scan": "strict_order"}
    else:
        probes = min(MOST_LISTS, effort or max(1, parameters["nlist"] // 8))
        settings = {"ivfflat.probes": probes, "ivfflat.iterative_scan": "relaxed_order"}
    table.session.set({**settings, "enable_seqscan": "off"})


def by_words(
    table: Table, context: ContextEncoding, turns: Sequence[str], options: SearchOptions, *, attention: str
) -> list[Hit]:
    """The best `top_k` rows of one context by words, with the scores of their vectors."""
    words = query_words(turns)
    if not (rows := table.by_words(words, k=options.k(1 << 62), filter=options.filter) if words else []):
        return []
    vectors = vectors_of((row[4] for row in rows), dim=table.meta.dim)
    scores = score(context.to(dtype=at_least_fp32(context.vectors.dtype)), vectors, attention=attention)[0]
    return [
        Hit(id_, text, own, metadata, "words", word_score=by_words)
        for (_, id_, text, metadata, _, by_words), own in zip(rows, scores.tolist(), strict=True)
    ]


class CandidateRow(NamedTuple):
    """A proposed candidate."""

    key: str
    id: str
    text: str
    metadata: dict[str, Any] | None


@dataclass(eq=False)
class PostgresSearch(Rescoring):
    """A search for the `k` best rows that pass a filter: a `certificate.ShortlistSearch`.

    Each search numbers its candidates: their places in `rows`.
    """

    table: Table
    contexts: ContextEncoding
    _: KW_ONLY
    k: int
    filter: Filter | None
    attention: str
    exact_lists: bool
    tolerance: float | None
    """Of the groups of codes that share a list; None for a list per code."""
    most_named: int = field(default=1 << 16, init=False)
    rows: list[CandidateRow] = field(default_factory=list, init=False)
    _numbers: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._condition, self._values = condition(self.filter)
        self._scale = scale_of(self.contexts, self.attention)

    def propose(self, contexts: ContextEncoding, places: Sequence[int], length: int) -> Iterator[Shortlist]:
        """As in `certificate.ShortlistSearch`, without candidates that cannot be among the k best."""
        for i in range(contexts.batch_size):
            yield self._ask(contexts.select(slice(i, i + 1)), length)

    def scan(self, contexts: ContextEncoding) -> TopK:
        found: list[TopK] = []
        for i in range(contexts.batch_size):
            context = contexts.select(slice(i, i + 1))
            rows, vectors, _ = self._ask(context, None)
            best = search(context, vectors.to(context.vectors.device), k=self.k, attention=self.attention)
            found.append(best._replace(indices=rows[best.indices.cpu()]))
        return TopK(torch.cat([best.scores for best in found]), torch.cat([best.indices for best in found]))

    def _ask(self, context: ContextEncoding, length: int | None) -> Shortlist:
        """The rows of one context, ordered by key; from lists of this length, or from all rows."""
        real = slice(None) if context.mask is None else context.mask[0]
        codes = context.vectors[0][real].float().cpu()
        keys = None if context.keys is None else context.keys.vectors[0][real].float().cpu()
        values: dict[str, Any] = dict(self._values)
        values |= {f"c{i}": literal(code) for i, code in enumerate(codes)}
        queries = codes
        if self.tolerance is not None and len(codes) > 1:
            queries = torch.from_numpy(group_means(codes.numpy(), tolerance=self.tolerance))
        if length is not None:
            values |= {f"q{i}": literal(query) for i, query in enumerate(queries)} | {"length": length}
        # The maximum difference of a float4 inner product and ours, per unit of the candidate's norm: dim x 2^-24 x |y|
        # each; a softmax and its sum add as much for each code.
        units = 2 * (context.dim + len(codes)) * torch.finfo(torch.float32).eps * codes.norm(dim=1)
        longest = units.max().item() if len(codes) else 0.0
        values |= {"k": self.k, "unit": 8 * longest, "square": 0.0}
        heads = 1
        if keys is not None and context.keys is not None:
            heads = context.keys.heads
            values |= {f"k{i}": literal(key) for i, key in enumerate(keys)}
            values |= {f"b{i}": float(bias) for i, bias in enumerate(context.keys.biases[0][real].tolist())}
            values["unit"] *= heads
            values["square"] = 8 * heads * longest * (keys.norm(dim=1).max().item() + 1) if len(keys) else 0.0
        values |= {f"u{i}": unit for i, unit in enumerate(units.tolist())} if length is not None else {}
        text = statement(
            len(codes),
            queries=None if length is None else len(queries),
            condition=self._condition,
            scale=self._scale,
            heads=heads,
            has_keys=keys is not None,
            certified=length is not None and self.exact_lists and len(queries) == len(codes),
        )
        used = {name: value for name, value in values.items() if f"%({name})s" in text}
        found = self.table.ask(text, used)
        rows = torch.tensor([self._number(CandidateRow(*row[:4])) for row in found], dtype=torch.int64)
        bound = found[0][5] if found and found[0][5] is not None else torch.inf
        return Shortlist(rows, vectors_of((row[4] for row in found), dim=context.dim), bound)

    def _number(self, row: CandidateRow) -> int:
        if (number := self._numbers.get(row.key)) is None:
            number = self._numbers[row.key] = len(self.rows)
            self.rows.append(row)
        return number
