"""Which intent of many a conversation has, or none: `Selector` beside the cosine of its encoder with a threshold.

    python -m benchmarks.select --datapath ../shared/data --json

The options are BANKING77's 77 intents as tools: a name, and three training questions as the description. Of three
groups of `--tested` conversations one has its intent among the options (test questions), one has not (other test
questions, whose intent is left out), and one is about something else (the first turns of dialogues of Schema-Guided
Dialogue and Taskmaster-4, whose files have no labels; those about banks and accounts are left out). For the last two
"none" is right.

The threshold of the cosine and the calibrations are fitted on the same training questions, each with and without its
intent among the options. The selector answers "none" where that is more probable than its first option. The last row
trained the side of conversations on other questions for `--updates` updates of 32; the vectors of options stay.
Milliseconds are processor time of a conversation with 200 options: new to the process (`first_ms`), and read before
(`ms`, median).
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from polyencoder import Ranker, Selector
from polyencoder.calibration.fitting import fit
from polyencoder.calibration.observations import observe
from polyencoder.data.example import Example
from polyencoder.data.readers import records
from polyencoder.ranker.reading import CandidateReader
from polyencoder.storage.checkpoint import model_fingerprint
from polyencoder.text.options import option_text
from polyencoder.training import TrainSettings, train_ranker

Tool = dict[str, str]
Choose = Callable[[list[str], list[Tool]], str | None]
"""(turns, options) -> the name of the chosen one, or None."""

BATCH = 32
SHOWN = 3  # questions in a description
TIMED = 200  # options
WORDS = ("bank", "account", "card", "transfer", "balance")  # of dialogues that an option may fit


@dataclass(frozen=True)
class Data:
    """The options, and conversations with the name of the right one."""

    tools: list[Tool]
    train: list[tuple[list[str], str]]
    fitted: list[tuple[list[str], str]]
    asked: dict[str, list[tuple[list[str], str]]]
    """The test conversations of each group; the name is that of the option to leave out where none is right."""
    timed: list[Tool]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--datapath", type=Path, default=Path("../shared/data"), help="ParlAI's data folder")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--tested", type=int, default=100, help="conversations of each group")
    parser.add_argument("--fitted", type=int, default=200, help="questions for the threshold and the calibrations")
    parser.add_argument("--updates", type=int, default=20, help="of 32 questions each; 0: no trained row")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tested, fitted, updates = (20, 40, 2) if flags.quick else (flags.tested, flags.fitted, flags.updates)
    encoder = str(flags.backbone or minilm_folder())
    data = read(flags.datapath, tested=tested, fitted=fitted, trained=updates * BATCH)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(encoder, data, Path(folder), updates=updates)
    accuracy = {row["system"]: row["accuracy"] for row in rows}
    first, *others = accuracy
    report = {
        "benchmark": "select",
        "machine": machine(),
        "settings": {"encoder": encoder, "tested": tested, "fitted": fitted, "updates": updates, "batch": BATCH},
        "rows": rows,
        "summary": {f"{name}, accuracy gained": accuracy[name] - accuracy[first] for name in others},
    }
    print_report(report, as_json=flags.json)


def read(datapath: Path, *, tested: int, fitted: int, trained: int) -> Data:
    """Reads the corpora; always the same parts."""
    rng = random.Random(0)
    of: dict[str, list[str]] = {}
    for _, row in records(datapath / "banking77" / "train.csv"):
        of.setdefault(row["category"], []).append(row["text"])
    for questions in of.values():
        rng.shuffle(questions)
    tools = [_tool(name, questions[:SHOWN]) for name, questions in of.items()]
    known = [([text], name) for name, questions in of.items() for text in questions[SHOWN:]]
    rng.shuffle(known)
    test = [([row["text"]], row["category"]) for _, row in records(datapath / "banking77" / "test.csv")]
    rng.shuffle(test)
    dialogues = [
        one["turns"][:3]
        for name in ("schema_guided", "taskmaster4")
        for _, one in records(datapath / "conversations" / f"{name}.jsonl.gz")
    ]
    others = [(turns, "") for turns in dialogues if not any(word in " ".join(turns).lower() for word in WORDS)]
    rng.shuffle(others)
    groups = {"answered": test[:tested], "left out": test[tested : 2 * tested], "about else": others[:tested]}
    more = (
        _tool(f"{name}_{place}", questions[place : place + SHOWN])
        for place in range(0, 30, SHOWN)
        for name, questions in of.items()
    )
    return Data(tools, known[fitted : fitted + trained], known[:fitted], groups, list(islice(more, TIMED)))


def _tool(name: str, questions: list[str]) -> Tool:
    return {"name": name, "description": f"Questions like: {' '.join(questions)}"}


def measure(encoder: str, data: Data, folder: Path, *, updates: int) -> list[dict[str, Any]]:
    """The rows of the report, shares in percent."""
    plain = Ranker.load(encoder)
    names, of_cosine = ["cosine with a threshold", "selector", "selector, trained"], _cosine(plain, data)
    rankers = [plain, *([_trained(encoder, data, folder, updates=updates)] if updates else [])]
    choices = [of_cosine, *(_calibrated(ranker, data) for ranker in rankers)]
    rows = []
    for name, choose, ranker in zip(names, choices, [plain, *rankers], strict=False):
        rows.append({"system": name, **_shares(choose, data), **_milliseconds(choose, ranker, data)})
    return rows


def _shares(choose: Choose, data: Data) -> dict[str, float]:
    right: dict[str, list[bool]] = {}
    for group, conversations in data.asked.items():
        for turns, name in conversations:
            options = [one for one in data.tools if group == "answered" or one["name"] != name]
            right.setdefault(group, []).append(choose(turns, options) == (name if group == "answered" else None))
    everything = [one for found in right.values() for one in found]
    shares = {f"right_{group}".replace(" ", "_"): 100 * statistics.mean(found) for group, found in right.items()}
    none = [*right["left out"], *right["about else"]]
    return {"accuracy": 100 * statistics.mean(everything), "right_none": 100 * statistics.mean(none), **shares}


def _milliseconds(choose: Choose, ranker: Ranker, data: Data) -> dict[str, float]:
    times = []
    ranker.reader = CandidateReader()  # without what was read before
    for turns, _ in data.asked["about else"][:20]:
        start = time.process_time()
        choose(turns, data.timed)
        times.append(1e3 * (time.process_time() - start))
    return {"first_ms": times[0], "ms": statistics.median(times[1:])}


def _calibrated(ranker: Ranker, data: Data) -> Choose:
    texts = {one["name"]: option_text(one) for one in data.tools}
    examples = [Example(turns, texts[name], list(texts.values())) for turns, name in data.fitted]
    fingerprint = model_fingerprint(ranker.model, ranker.text)
    ranker.calibration = fit(observe(ranker, examples), fingerprint=fingerprint).calibration
    selector = Selector(ranker)

    def choose(turns: list[str], options: list[Tool]) -> str | None:
        found = selector.select(turns, options, top_k=1)
        (best,) = found.chosen
        assert best.probability is not None
        assert found.none_probability is not None
        return best.name if best.probability > found.none_probability else None

    return choose


def _cosine(ranker: Ranker, data: Data) -> Choose:
    """The option of the highest cosine, unless that is below the threshold of the best accuracy."""
    kept: dict[str, np.ndarray] = {}

    def nearest(turns: list[str], options: list[Tool]) -> tuple[str, float]:
        texts = [option_text(one) for one in options]
        if new := [text for text in texts if text not in kept]:
            kept.update(zip(new, ranker.encode(new, normalize=True), strict=True))
        cosines = np.stack([kept[text] for text in texts]) @ ranker.encode([" ".join(turns)], normalize=True)[0]
        return options[int(cosines.argmax())]["name"], float(cosines.max())

    found = []  # (cosine, whether the option is right, whether "none" is)
    for turns, name in data.fitted:
        for options in (data.tools, [one for one in data.tools if one["name"] != name]):
            best, cosine = nearest(turns, options)
            found.append((cosine, best == name, options is not data.tools))
    threshold = max(
        (cosine for cosine, _, _ in found),
        key=lambda least: sum(none if cosine < least else right for cosine, right, none in found),
    )

    def choose(turns: list[str], options: list[Tool]) -> str | None:
        best, cosine = nearest(turns, options)
        return best if cosine >= threshold else None

    return choose


def _trained(encoder: str, data: Data, folder: Path, *, updates: int) -> Ranker:
    texts = {one["name"]: option_text(one) for one in data.tools}
    for part, pairs in {"train": data.train, "valid": data.fitted[:20]}.items():
        lists = {"candidates": list(texts.values())} if part == "valid" else {}
        lines = (json.dumps({"context": turns, "response": texts[name], **lists}) for turns, name in pairs)
        (folder / f"{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    settings: dict[str, Any] = {part: str(folder / f"{part}.jsonl") for part in ("train", "valid")}
    settings |= {"out": str(folder / "trained"), "backbone": encoder, "architecture": "bi", "max_updates": updates}
    settings |= {"batch_size": BATCH, "learning_rate": 1e-4, "freeze_candidates": True}
    report = train_ranker(TrainSettings(**settings))
    return Ranker.load(report.out)


if __name__ == "__main__":
    main()
