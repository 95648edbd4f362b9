"""Ranks lists of candidates for a context: bi-, late-interaction and cross-encoder around one backbone, in one process.

Milliseconds of processor time, medians, from a context and texts to their order, tokenizing and the context included:
- bi, late, cross: `Ranker.rank` of candidates that were never seen before;
- late, read before: `Ranker.rank` of the same candidates once more;
- late, stored: a search in an index of the candidates with `store_tokens="int8"`, which reranks all of them.

Weights are untrained: times do not depend on them. With `--model`, a trained late-interaction encoder also shows what
storing its token vectors costs: the share of contexts whose ten best of the candidates are those of token vectors that
were not stored, and the largest difference of a score. And what a search loses that compares tokens of the 100 nearest
vectors alone.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, processor_ms, use_threads
from benchmarks.search.texts import made_candidates, made_contexts, read_candidates, read_contexts
from polyencoder import Ranker
from polyencoder.index.hits import OWN_K
from polyencoder.index.searcher import Searcher

COUNTS = (20, 100, 1_000)
SYSTEMS = ("bi", "late", "late, read before", "late, stored", "cross")
TOP_K = 10
WARM_UP = 20  # candidates of an uncounted list

Work = Callable[[list[str]], object]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--backbone", type=Path, help="folder of the encoder (default: MiniLM)")
    parser.add_argument("--datapath", type=Path, help="ParlAI's data folder, for real texts")
    parser.add_argument("--model", type=Path, help="a trained late-interaction encoder")
    parser.add_argument("--repeats", type=int, default=5, help="contexts of each measurement; of a cross-encoder, one")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="candidates of a list")
    parser.add_argument("--contexts", type=int, default=50, help="contexts over which stored tokens are compared")
    parser.add_argument("--texts", type=int, default=1000, help="candidates among which stored tokens are compared")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    counts, repeats = (COUNTS[:1], 2) if flags.quick else (flags.counts, flags.repeats)
    n_texts, n_contexts = max(WARM_UP + repeats * sum(counts), flags.texts), max(repeats, flags.contexts)
    if flags.datapath is None:
        contexts, texts = made_contexts(n_contexts), made_candidates(n_texts)
    else:
        contexts, texts = read_contexts(flags.datapath, n_contexts), read_candidates(flags.datapath, n_texts)
    rows, summary = _times(flags.backbone or minilm_folder(), contexts, texts, counts=counts, repeats=repeats)
    if flags.model is not None:
        summary |= _stored(Ranker.from_pretrained(flags.model), contexts[: flags.contexts], texts[: flags.texts])
    settings = {"repeats": repeats, "candidates": list(counts)}
    if flags.model is not None:
        settings |= {"compared_contexts": flags.contexts, "compared_texts": flags.texts}
    report = {"benchmark": "ranking", "machine": machine(), "settings": settings, "rows": rows, "summary": summary}
    print_report(report, as_json=flags.json)


def _times(
    backbone: Path, contexts: list[list[str]], texts: list[str], *, counts: Sequence[int], repeats: int
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A row for each number of candidates, and how many times a late encoder's the cross-encoder's is."""
    rankers = {kind: Ranker.from_backbone(backbone, kind, device="cpu") for kind in ("bi", "late", "cross")}
    with torch.no_grad():
        rankers["late"].model.get_parameter("exits").fill_(1e-3)
    unseen = iter(texts)
    _measured(rankers, list(itertools.islice(unseen, WARM_UP)), contexts[0], names=SYSTEMS)
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    for n in counts:
        found = [
            _measured(rankers, list(itertools.islice(unseen, n)), turns, names=SYSTEMS if i == 0 else SYSTEMS[:-1])
            for i, turns in enumerate(contexts[:repeats])
        ]
        row = {name: statistics.median(one[name] for one in found if name in one) for name in SYSTEMS}
        rows.append({"candidates": n, **row})
        summary |= {f"cross / {name}, {n}": row["cross"] / row[name] for name in SYSTEMS[:-1]}
    return rows, summary


def _measured(
    rankers: Mapping[str, Ranker], candidates: list[str], turns: list[str], *, names: Sequence[str]
) -> dict[str, float]:
    """Milliseconds of each system for one list."""
    late, n = rankers["late"], len(candidates)
    with tempfile.TemporaryDirectory() as folder:
        index = late.index(candidates, Path(folder) / "index", store_tokens="int8")
        stored = Searcher(late, index, top_k=TOP_K, rerank_k=n, keep_turns=True)
        works: dict[str, Work] = {kind: _rank(ranker, candidates) for kind, ranker in rankers.items()}
        works |= {"late, read before": works["late"], "late, stored": lambda turns: stored([turns])}
        times = {name: processor_ms(partial(works[name], turns)) for name in names}
        index.close()
    return times


def _rank(ranker: Ranker, candidates: list[str]) -> Work:
    return lambda turns: ranker.rank(turns, candidates, top_k=TOP_K)


def _stored(ranker: Ranker, contexts: list[list[str]], texts: list[str]) -> dict[str, float]:
    """What the order of these texts, and their scores, lose by storing token vectors; and the bytes of a candidate."""
    expected = ranker.score(contexts, texts)
    best = expected.topk(TOP_K).indices.tolist()
    place = {text: i for i, text in enumerate(texts)}
    found: dict[str, float] = {}
    for dtype in ("int8", "float16"):
        with tempfile.TemporaryDirectory() as folder:
            index = ranker.index(texts, folder, store_tokens=dtype)
            size = sum(path.stat().st_size for path in Path(folder).glob("*.npy"))
            hits = Searcher(ranker, index, top_k=len(texts), rerank_k=len(texts), keep_turns=True)(contexts)
            searched = Searcher(ranker, index, top_k=TOP_K, keep_turns=True)(contexts)
            index.close()
        ours = [[place[hit.text] for hit in some] for some in hits]
        differences = [
            abs(float(hit.rerank_score or 0) - float(expected[i, place[hit.text]]))
            for i, some in enumerate(hits)
            for hit in some
        ]
        same = [one[:TOP_K] == other for one, other in zip(ours, best, strict=True)]
        kept = [len({*one[:TOP_K]} & {*other}) for one, other in zip(ours, best, strict=True)]
        first = [one[0] == other[0] for one, other in zip(ours, best, strict=True)]
        reached = [[place[hit.text] for hit in some] for some in searched]
        found[f"{dtype}, {OWN_K} of {len(texts)} reranked: share of the ten best"] = statistics.mean(
            len({*one} & {*other}) / TOP_K for one, other in zip(reached, best, strict=True)
        )
        found[f"{dtype}, {OWN_K} of {len(texts)} reranked: the same best"] = statistics.mean(
            one[0] == other[0] for one, other in zip(reached, best, strict=True)
        )
        found |= {
            f"{dtype}: the ten best in the same order": statistics.mean(same),
            f"{dtype}: share of the ten best": statistics.mean(kept) / TOP_K,
            f"{dtype}: the same best": statistics.mean(first),
            f"{dtype}: largest difference of a score": max(differences),
            f"{dtype}: bytes per text, vectors included": size / len(texts),
        }
    found["standard deviation of a context's scores"] = float(expected.std(dim=1).mean())
    return found


if __name__ == "__main__":
    main()
