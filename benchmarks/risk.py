"""Measures whether promised risks hold: questions are split into calibration and test again and again.

    python -m benchmarks.risk --datapath ../shared/data --dialogue MODEL --tools MODEL --tool-data DATA --json

Each question is encoded once. For each of 200 splits `--examples` questions calibrate the ranker, as
`polyencoder calibrate --risk` does, and all others are answered; a fifth of them has no right answer. Of all splits
`promised` have a promise, and `broken` one that more wrong answers break, at most 5 % by its confidence. Beside it: the
lowest score above which 90 % of the answers to the same calibration questions are right.

- banking77: MiniLM, untrained. An intent's score is its most similar training question's. Questions without an
  answer are first turns of DailyDialog.
- shop: the 240 questions and 40 replies of `make demo`, MiniLM, half of them for the calibration; likewise.
- dialogue: DailyDialog's validation and test turns, among 20 replies, with `--dialogue` (default: MiniLM). Turns
  without an answer have lost their right reply.
- tools: turns and tools of the test split, in the files of examples/tools.py, with `--tools` (default: MiniLM). Turns
  without an answer have lost their right tool.

`--picture FILE` draws the share of questions that is answered, for each risk.
"""

from __future__ import annotations

import itertools
import random
import runpy
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.common import build_parser, find_minilm_folder, print_report, use_threads
from polyencoder import Ranker
from polyencoder.calibration.fitting import Observations, fit_promising
from polyencoder.calibration.risk import CONFIDENCE, Answers, count_fewest_answers
from polyencoder.data.example import Example
from polyencoder.data.pairs import read_examples
from polyencoder.data.readers import iter_records
from polyencoder.evaluation.calibrate import collect_observations, observe
from polyencoder.pictures import create_figure, save_figure

RISKS = (0.01, 0.05, 0.1)
DRAWN = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
"""The risks of the picture."""
PRECISION = 0.9
UNANSWERABLE = 0.2
SUPPORT = Path(__file__).parents[1] / "examples" / "support"
TOOLS = Path(__file__).parents[1] / "examples" / "tools.py"


class Questions(NamedTuple):
    """Questions with known answers, and the same questions as users ask them."""

    answerable: Observations
    outside: Observations | None = None
    """Questions of another kind, which no candidate answers; None for the same ones without their right candidates."""

    def mix(self, rng: np.random.Generator, *, unanswerable: float) -> Observations:
        """The questions; a random share of them have no right answer."""
        answerable, keep = self.answerable, torch.as_tensor(rng.random(len(self.answerable)) >= unanswerable)
        if self.outside is None:
            return answerable.keep_right_where(keep)
        outside = self.outside.select(torch.as_tensor(rng.integers(len(self.outside), size=len(keep))))
        keep = keep.unsqueeze(1)
        scores = torch.where(keep, answerable.scores, outside.scores)
        return Observations(scores, answerable.right & keep, answerable.among)


class Outcome(NamedTuple):
    """The answers that a threshold lets through, on new questions."""

    wrong: float
    """The share of the answers; 0 if there are none."""
    answered: float
    """The share of the questions."""

    @classmethod
    def from_answers(cls, answers: Answers, threshold: float) -> Outcome:
        passes = answers.probabilities >= threshold
        return cls(float((passes & ~answers.right).sum() / max(1, passes.sum())), float(passes.mean()))


def split(n: int, examples: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a calibration, and all others."""
    rows = torch.as_tensor(rng.permutation(n))
    return rows[:examples], rows[examples:]


def measure_promised(
    calibrating: Observations, new: Observations, *, risks: Sequence[float], unanswerable: float, confidence: float,
    seed: int,
) -> dict[float, Outcome | None]:  # fmt: skip
    """How what a calibration promises for each risk does on new questions; None where it promises nothing."""
    calibration, _ = fit_promising(
        calibrating, risks, confidence=confidence, unanswerable=unanswerable, fingerprint="", seed=seed
    )
    scores = new.scores[:, : new.depth].numpy()
    first = calibration.probabilities(scores, among=new.among.numpy())[:, 0]
    answers = Answers(first, new.right[:, 0].numpy())
    outcomes = {promise.risk: Outcome.from_answers(answers, promise.threshold) for promise in calibration.promises}
    return {risk: outcomes.get(risk) for risk in risks}


def measure_by_score(calibrating: Observations, new: Observations, *, precision: float) -> Outcome | None:
    """The lowest score above which enough answers to the calibration's questions are right, on new questions."""
    scores, right = calibrating.scores[:, 0].numpy(), calibrating.right[:, 0].numpy()
    order = np.argsort(-scores, kind="stable")
    enough = np.flatnonzero(np.cumsum(right[order]) >= precision * np.arange(1, len(order) + 1))
    if not enough.size:
        return None
    return Outcome.from_answers(Answers(new.scores[:, 0].numpy(), new.right[:, 0].numpy()), scores[order[enough[-1]]])


def measure(case: str, questions: Questions, *, examples: int, resamples: int) -> list[dict[str, Any]]:
    """A row for each risk, and one for the threshold of a score."""
    risks = [risk for risk in DRAWN if examples >= 2 * count_fewest_answers(risk, confidence=CONFIDENCE)]
    outcomes: dict[tuple[str, float], list[Outcome | None]] = defaultdict(list)  # by kind of threshold and risk
    for seed in range(resamples):
        rng = np.random.default_rng(seed)
        sample, rest = split(len(questions.answerable), examples, rng)
        calibrating = questions.answerable.select(sample)
        new = questions.mix(rng, unanswerable=UNANSWERABLE).select(rest)
        promised = measure_promised(
            calibrating, new, risks=risks, unanswerable=UNANSWERABLE, confidence=CONFIDENCE, seed=seed
        )
        for risk, outcome in promised.items():
            outcomes["promise", risk].append(outcome)
        keep = torch.as_tensor(rng.random(examples) >= UNANSWERABLE)
        by_score = measure_by_score(calibrating.keep_right_where(keep), new, precision=PRECISION)
        outcomes["score", round(1 - PRECISION, 4)].append(by_score)
    facts = {"case": case, "right": questions.answerable.right[:, 0].double().mean().item(), "examples": examples}
    return [{**facts, "threshold": kind, **_sum_outcomes(group, risk=risk)} for (kind, risk), group in outcomes.items()]


def _sum_outcomes(outcomes: Sequence[Outcome | None], *, risk: float) -> dict[str, Any]:
    """The shares of all splits that have a threshold, and that break it; the mean share of wrong and of all answers."""
    promised = [outcome for outcome in outcomes if outcome is not None]
    return {
        "risk": risk,
        "promised": len(promised) / len(outcomes),
        "broken": sum(outcome.wrong > risk for outcome in promised) / len(outcomes),
        "wrong": statistics.mean(outcome.wrong for outcome in promised) if promised else None,
        "answered": sum(outcome.answered for outcome in promised) / len(outcomes),
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the share of questions that get an answer for each risk."""
    figure = create_figure(4.6, 3.2)
    axes = figure.subplots()
    promises = [row for row in rows if row["threshold"] == "promise"]
    for case, of_case in itertools.groupby(promises, key=lambda row: row["case"]):
        points = [(100 * row["risk"], 100 * row["answered"]) for row in of_case]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=case)
    axes.set(xlabel="promised risk (%)", ylabel="questions answered (%)", xlim=(0, None), ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    save_figure(figure, path)


def _build_outside(scores: torch.Tensor) -> Observations:
    """The observations of questions that no candidate answers."""
    best = scores.sort(1, descending=True).values
    return Observations(best, torch.zeros_like(best, dtype=torch.bool), torch.full((len(best),), best.shape[1]))


def read_banking77(ranker: Ranker, datapath: Path, limit: int) -> Questions:
    train, test = (
        [row for _, row in iter_records(datapath / "banking77" / f"{name}.csv")] for name in ("train", "test")
    )
    random.Random(0).shuffle(test)
    train.sort(key=lambda row: row["category"])
    intents = [row["category"] for row in train]
    starts = {name: intents.index(name) for name in intents}

    def score(questions: Sequence[str]) -> torch.Tensor:
        similar = ranker.score(questions, [row["text"] for row in train])
        return torch.from_numpy(np.maximum.reduceat(similar, [*starts.values()], axis=1)).double()

    examples = [Example([row["text"]], row["category"], [*starts]) for row in test[:limit]]
    answerable = collect_observations(examples, enumerate(score([example.turns[0] for example in examples])))
    return Questions(answerable, _build_outside(score(_read_first_turns(datapath, len(test)))))


def read_shop(ranker: Ranker, datapath: Path, limit: int) -> Questions:
    replies = [row["text"] for _, row in iter_records(SUPPORT / "replies.jsonl")]
    rows = [row for name in ("train", "valid") for _, row in iter_records(SUPPORT / f"{name}.jsonl")][:limit]
    answerable = observe(ranker, [Example(row["context"], row["response"], replies) for row in rows])
    return Questions(
        answerable, _build_outside(torch.from_numpy(ranker.score(_read_first_turns(datapath, 1000), replies)).double())
    )


def read_dialogue(ranker: Ranker, datapath: Path, limit: int) -> Questions:
    rows = [
        {"context": turns[:turn], "response": turns[turn]}
        for split, turns in _iter_dialogues(datapath)
        if split != "train"
        for turn in range(1, len(turns))
    ]
    random.Random(0).shuffle(rows)
    return Questions(observe(ranker, read_examples(rows[:limit])[0]))


def read_tools(ranker: Ranker, data: Path, limit: int) -> Questions:
    rows = runpy.run_path(str(TOOLS))["read_examples"](data, "test")[:limit]
    return Questions(observe(ranker, read_examples(rows)[0]))


def _read_first_turns(datapath: Path, n: int) -> list[str]:
    return [turns[0] for _, turns in itertools.islice(_iter_dialogues(datapath), n)]


def _iter_dialogues(datapath: Path) -> Iterator[tuple[str, list[str]]]:
    for _, row in iter_records(datapath / "dailydialog" / "dialogues.jsonl.gz"):
        yield row["split"], row["turns"]


READERS: dict[str, Callable[[Ranker, Path, int], Questions]] = {
    "banking77": read_banking77,
    "shop": read_shop,
    "dialogue": read_dialogue,
    "tools": read_tools,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--datapath", type=Path, required=True, help="the folder with banking77 and dailydialog in it")
    parser.add_argument("--dialogue", metavar="MODEL", help="a ranker of replies (default: MiniLM)")
    parser.add_argument("--tools", metavar="MODEL", help="a ranker of tools (default: MiniLM)")
    parser.add_argument("--tool-data", type=Path, help="the folder that examples/tools.py reads, for the case tools")
    parser.add_argument("--cases", nargs="+", choices=[*READERS], default=[*READERS])
    parser.add_argument("--examples", type=int, default=1000, help="of a calibration")
    parser.add_argument("--picture", type=Path, help="also draw risks and shares answered, as SVG")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    resamples, limit = (5, 300) if flags.quick else (200, 4000)
    if "tools" in flags.cases and flags.tool_data is None:
        parser.error("the case tools needs --tool-data, the folder that examples/tools.py reads")
    data = {"tools": flags.tool_data}
    models = {case: Ranker.load(getattr(flags, case, None) or find_minilm_folder()) for case in flags.cases}
    rows = []
    for case, ranker in models.items():
        questions = READERS[case](ranker, data.get(case, flags.datapath), limit)
        examples = min(flags.examples, len(questions.answerable) // 2)
        rows += measure(case, questions, examples=examples, resamples=resamples)
    if flags.picture:
        draw(rows, flags.picture)
    main_rows = [row for row in rows if row["risk"] in RISKS]
    report = {
        "benchmark": "risk",
        "settings": {"confidence": CONFIDENCE, "unanswerable": UNANSWERABLE, "resamples": resamples},
        "rows": rows if flags.json else main_rows,
        "summary": {
            f"broken_by_{kind}": max(row["broken"] for row in main_rows if row["threshold"] == kind)
            for kind in ("promise", "score")
        },
    }
    print_report(report, as_json=flags.json)


if __name__ == "__main__":
    main(sys.argv[1:])
