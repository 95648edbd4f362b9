"""Search in PostgreSQL: one statement proposes candidates, scores them, and bounds the others.

    near     each code's nearest rows (LATERAL over the codes), by pgvector's index or, if it is "flat", by all rows
    scored   the poly-encoder's score of each: the softmax over the codes' inner products
    kept     those whose score is not below the k-th best, within rounding

A scan is the same statement without `near`. pgvector's products are float4, so scores have rounding errors, which a
margin allows for: the result, a few more than k rows, is scored again by this library. So the results, their order and
their ties are those of a scan in memory. `certificate` does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from polyencoder.index.certificate import Shortlist
from polyencoder.index.faiss.search import group_means
from polyencoder.index.filters import Filter
from polyencoder.index.postgres.rows import condition
from polyencoder.index.postgres.table import Table, literal, vectors_of
from polyencoder.scoring import ContextEncoding, TopK, search
from polyencoder.scoring.exact import scale_of

# exp of less is an underflow error in PostgreSQL, not 0; weights of e^-100 do not change a score.
_LEAST_EXPONENT = -100


class CandidateRow(NamedTuple):
    """A proposed candidate."""

    key: str
    id: str
    text: str
    metadata: dict[str, Any] | None


class PostgresSearch:
    """A search for the `k` best rows that pass a filter: a `certificate.ShortlistSearch`.

    Each search numbers its candidates: their places in `rows`.
    """

    most_named = 1 << 16

    def __init__(
        self,
        table: Table,
        contexts: ContextEncoding,
        *,
        k: int,
        filter: Filter | None,
        attention: str,
        exact_lists: bool,
        tolerance: float | None,
    ) -> None:
        """`tolerance`: of the groups of codes that share a list; None for a list per code."""
        self.contexts = contexts
        self.k = k
        self.attention = attention
        self.exact_lists = exact_lists
        self.rows: list[CandidateRow] = []
        self._numbers: dict[str, int] = {}
        self._table = table
        self._condition, self._values = condition(filter)
        self._tolerance = tolerance
        self._scale = scale_of(contexts, attention)

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
        if self._tolerance is not None and len(codes) > 1:
            queries = group_means(codes, tolerance=self._tolerance)
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
        found = self._table.ask(text, used)
        rows = torch.tensor([self._number(CandidateRow(*row[:4])) for row in found], dtype=torch.int64)
        bound = found[0][5] if found and found[0][5] is not None else torch.inf
        return Shortlist(rows, vectors_of((row[4] for row in found), dim=context.dim), bound)

    def _number(self, row: CandidateRow) -> int:
        if (number := self._numbers.get(row.key)) is None:
            number = self._numbers[row.key] = len(self.rows)
            self.rows.append(row)
        return number


def statement(
    codes: int, *, queries: int | None, condition: str, scale: float, heads: int, has_keys: bool, certified: bool
) -> str:
    """The statement for a context of `codes` codes: over the lists of `queries` vectors, or over all rows (None).

    Its text depends only on numbers; vectors, lengths and filter values are bound. Columns: key, id, text, metadata,
    vector, and the bound for rows outside the lists, null if unknown.
    """
    near, source, bound = "", f"WHERE {condition}", "NULL::float8"
    if queries is not None:
        units = [f"%(u{i})s::float8" if certified else "0.0::float8" for i in range(queries)]
        asking = ", ".join(f"({i}, %(q{i})s::vector, {unit})" for i, unit in enumerate(units))
        near = f"""near AS MATERIALIZED (
    SELECT codes.code, codes.unit, nearest.key, nearest.product
    FROM (VALUES {asking}) AS codes(code, query, unit)
    CROSS JOIN LATERAL (
        SELECT key, -(vector <#> codes.query) AS product FROM {{table}} WHERE {condition}
        ORDER BY vector <#> codes.query LIMIT %(length)s
    ) AS nearest
), """
        source = "WHERE key IN (SELECT key FROM near)"
        if certified:
            bound = f"""(
        SELECT CASE WHEN count(*) = {queries} AND bool_and(lists.named = %(length)s)
            THEN max(lists.last + lists.unit * longest.norm) END
        FROM (SELECT unit, min(product) AS last, count(*) AS named FROM near GROUP BY code, unit) AS lists
    )"""
    # OFFSET 0 prevents PostgreSQL from recomputing a column at each use
    every = range(codes)
    products = "".join(f", -(vector <#> %(c{i})s::vector) AS l{i}" for i in every)
    if has_keys:
        weighing = "".join(f", %(b{i})s::float8 - (vector <#> %(k{i})s::vector) AS w{i}" for i in every)
    else:
        weighing = "".join(f", l{i} * {scale!r}::float8 AS w{i}" for i in every)
    columns = f"key{products}{', vector' if has_keys else ''}"
    logits = f"SELECT *{weighing} FROM (SELECT {columns} FROM {{table}} {source} OFFSET 0) AS a OFFSET 0"
    of_heads = [list(every[head::heads]) for head in range(heads)] if codes else []
    tops = "".join(f", greatest({', '.join(f'w{i}' for i in of)}) AS t{h}" for h, of in enumerate(of_heads))
    weights = "".join(
        f", exp(greatest(w{i} - t{h}, {_LEAST_EXPONENT})) AS e{i}" for h, of in enumerate(of_heads) for i in of
    )
    score = " + ".join(
        f"({' + '.join(f'e{i} * l{i}' for i in of)}) / ({' + '.join(f'e{i}' for i in of)})" for of in of_heads
    )
    if codes == 1 and not has_keys:
        score = "l0"
    names = "".join(f", l{i}" for i in every)
    return f"""WITH {near}longest AS MATERIALIZED (SELECT max(norm)::float8 AS norm FROM {{table}}),
scored AS MATERIALIZED (
    SELECT key, {score or "0.0::float8"} AS score
    FROM (SELECT key{names}{weights} FROM (SELECT *{tops} FROM ({logits}) AS b OFFSET 0) AS c OFFSET 0) AS d
),
least AS MATERIALIZED (
    SELECT min(best.score) - %(unit)s::float8 * longest.norm - %(square)s::float8 * longest.norm * longest.norm AS score
    FROM (SELECT score FROM scored ORDER BY score DESC LIMIT %(k)s) AS best, longest GROUP BY longest.norm
),
kept AS (
    SELECT key, id, text, metadata, vector, row_number() OVER (PARTITION BY scored.score, vector ORDER BY key) AS copy
    FROM scored JOIN {{table}} USING (key), least WHERE scored.score >= least.score
)
SELECT key, id, text, metadata, vector, {bound} FROM kept, longest WHERE copy <= %(k)s ORDER BY key"""
