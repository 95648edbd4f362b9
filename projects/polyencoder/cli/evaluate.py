"""`polyencoder evaluate`: how well a model ranks the examples of a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from polyencoder.cli.shared.loading import load
from polyencoder.cli.shared.output import say
from polyencoder.data.negatives import NegativeSampler
from polyencoder.data.pairs import examples_to_rank, read_all_pairs
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation import evaluate as evaluated
from polyencoder.evaluation.contexts import reads_earlier_turns, with_contexts
from polyencoder.evaluation.names import main_measures, parse_hits_at
from polyencoder.evaluation.tfidf import evaluate_tfidf
from polyencoder.ranker.protocol import TextRanker
from polyencoder.settings.evaluate import EvaluateSettings

__all__ = ["evaluate"]


def evaluate(settings: EvaluateSettings) -> None:
    """Rank each example's candidates and print recall, mean reciprocal rank and loss."""
    data, negatives, baseline = settings.data, settings.negatives, settings.baseline
    ks = parse_hits_at(settings.hits_at)
    columns, pool = settings.columns.columns, negatives or data
    pairs = list(read_all_pairs(data, columns=columns))
    if not pairs:
        raise InputError(f"{data}: has no example to evaluate on")

    def responses() -> Iterator[str]:
        drawn_from = read_all_pairs(negatives, columns=columns) if negatives else pairs
        return (pair.label for pair in drawn_from)

    sampler = NegativeSampler(responses(), count=settings.num_negatives, seed=settings.seed, source=pool)
    rows = list(zip(pairs, examples_to_rank(pairs, sampler), strict=True))
    if all(pair.candidates is not None for pair in pairs):
        for name in sorted(settings.given & {"num_negatives", *([] if baseline else ["negatives"])}):
            raise ConfigError(f"{name}: every example has candidates of its own; leave it out", argument=name)
    ranker: TextRanker = load(settings.model)
    if settings.extra_contexts is not None or settings.context_vector is not None:
        ranker = with_contexts(ranker, extra_contexts=settings.extra_contexts, vector=settings.context_vector)
    if settings.context_vector == "extra":
        rows = [row for row in rows if reads_earlier_turns(ranker, row[1].turns)]
        if not rows:
            raise InputError(f"{data}: no example has a turn before its last one, which is all that extra reads")
    examples = [example for _, example in rows]
    drawn, left_out = sum(pair.candidates is None for pair, _ in rows), len(pairs) - len(rows)
    report = evaluated(ranker, examples, hits_at=ks).report()
    tfidf = evaluate_tfidf(responses(), examples, hits_at=ks) if baseline else {}
    if settings.as_json:
        of_it = {"examples": len(examples), "drawn": drawn, **report}
        more = {"without_earlier_turns": left_out, "tfidf": tfidf}
        say(json.dumps(of_it | {name: value for name, value in more.items() if value}))
        return
    say(f"{len(examples):,} examples: {_measures(report)}")
    if tfidf:
        say(f"TF-IDF, of the last turn: {_measures(tfidf)}")
    if left_out:
        say(f"{left_out:,} others have no turn before the last one, which is all that extra reads: left out")
    if drawn:
        say(
            f"{drawn:,} of the examples had no candidates: {settings.num_negatives} other responses of {pool} were "
            "drawn for each"
        )


def _measures(report: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in main_measures(report).items())
