"""The SQL of a search: one statement proposes candidates, scores them, and bounds the others.

    near     each code's nearest rows (LATERAL over the codes), by pgvector's index or, if it is "flat", by all rows
    scored   the poly-encoder's score of each: the softmax over the codes' inner products
    kept     those whose score is not below the k-th best, within rounding

A scan is the same statement without `near`.
"""

from __future__ import annotations

# exp of less is an underflow error in PostgreSQL, not 0; weights of e^-100 do not change a score.
_LEAST_EXPONENT = -100


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
