"""Which of many tools a conversation calls, or none: `Selector`, plain and trained, beside a cosine with a threshold.

    git clone https://github.com/google-research-datasets/dstc8-schema-guided-dialogue sgd
    python -m benchmarks.select --sgd sgd --json

The tools are the intents of Schema-Guided Dialogue (Rastogi et al., AAAI 2020): a name, the descriptions of service and
intent, and parameters. A conversation's options are the intents of its services and of one service for each other
domain. Of three groups of `--tested` conversations of the test split one ends with a turn that states an intent, which
is right; one too, but its service is left out, so that "none" is right; and one ends with a turn without any intent
("No, thank you"), where "none" is right, too. A conversation is its last `TURNS` turns.

The threshold of the cosine and the calibrations are fitted on the same conversations of the dev split, each with and
without its service (the calibrations: its intent). The selector answers "none" where that is more probable than its
first option. The last row trained a bi-encoder's side of conversations on the train split, each example with its
options: most services of the test split are not among them. The vectors of options stay.
Milliseconds are processor time of a conversation with 200 options: new to the process (`first_ms`), and read before
(`ms`, median).
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import argument_parser, machine, minilm_folder, print_report, use_threads
from polyencoder import Ranker, Selector
from polyencoder.calibration.fitting import fit
from polyencoder.calibration.observations import observe
from polyencoder.data.example import Example
from polyencoder.ranker.reading import CandidateReader
from polyencoder.storage.fingerprint import model_fingerprint
from polyencoder.text.options import option_text
from polyencoder.training import TrainSettings, train_ranker

Tool = dict[str, Any]
Choose = Callable[[list[str], list[Tool]], str | None]
"""(turns, options) -> the name of the chosen one, or None."""

BATCH = 16
TURNS = 3
TIMED = 200  # options
LARGEST = 4 * 2**20  # bytes of a file that is read: not all copies have the larger ones


@dataclass(frozen=True)
class Conversation:
    """The last turns of a conversation, its options, and the name of the right one; "" if there is none.

    without: the options without those of the right one's service.
    """

    turns: list[str]
    options: list[Tool]
    right: str
    without: list[Tool]


@dataclass(frozen=True)
class Data:
    """Conversations that end with an intent, of each split; those of the test split that do not; options to time."""

    train: list[Conversation]
    fitted: list[Conversation]
    tested: list[Conversation]
    idle: list[Conversation]
    timed: list[Tool]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--sgd", type=Path, required=True, help="a clone of Schema-Guided Dialogue's repository")
    parser.add_argument("--backbone", help="a sentence encoder (default: MiniLM)")
    parser.add_argument("--tested", type=int, default=100, help="conversations of each group")
    parser.add_argument("--fitted", type=int, default=200, help="conversations for the threshold and the calibrations")
    parser.add_argument("--updates", type=int, default=40, help="of 16 conversations each; 0: no trained row")
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    tested, fitted, updates = (20, 40, 2) if flags.quick else (flags.tested, flags.fitted, flags.updates)
    encoder = str(flags.backbone or minilm_folder())
    data = read(flags.sgd, tested=tested, fitted=fitted, trained=updates * BATCH)
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


def read(folder: Path, *, tested: int, fitted: int, trained: int) -> Data:
    """Reads the splits; always the same parts."""
    found = {split: list(_conversations(folder / split)) for split in ("train", "dev", "test")}
    for conversations in found.values():
        random.Random(0).shuffle(conversations)
    active = {split: [one for one in some if one.right] for split, some in found.items()}
    idle = [one for one in found["test"] if not one.right]
    schemas = [folder / split for split in found] + sorted((folder / "sgd_x" / "data").glob("*/*"))  # reworded
    tools = {option_text(tool): tool for schema in schemas for some in _tools(schema).values() for tool in some}
    return Data(
        active["train"][:trained],
        active["dev"][:fitted],
        active["test"][: 2 * tested],
        idle[:tested],
        [{**tool, "name": f"{tool['name']}_{place}"} for place, tool in enumerate(list(tools.values())[:TIMED])],
    )


def _tools(folder: Path) -> dict[str, list[Tool]]:
    """The intents of each service as tools."""
    return {
        service["service_name"]: [_tool(service, intent) for intent in service["intents"]]
        for service in json.loads((folder / "schema.json").read_text(encoding="utf-8"))
    }


def _tool(service: dict[str, Any], intent: dict[str, Any]) -> Tool:
    described = {slot["name"]: slot["description"] for slot in service["slots"]}
    slots = [*intent["required_slots"], *intent["optional_slots"]]
    return {
        "name": f"{service['service_name']}_{intent['name']}",
        "description": f"{intent['description']}. {service['description']}.",
        "inputSchema": {"properties": {name: {"type": "string", "description": described[name]} for name in slots}},
    }


def _conversations(folder: Path) -> Iterator[Conversation]:
    """A conversation for each turn of a user that states an intent, or is without any."""
    tools = _tools(folder)
    paths = sorted(folder.glob("dialogues_*.json"))
    if not paths:
        raise SystemExit(f"{folder}: has no dialogues_*.json")
    for path in paths:
        if path.stat().st_size >= LARGEST:
            continue
        for dialogue in json.loads(path.read_text(encoding="utf-8")):
            names = {name.rpartition("_")[0]: name for name in sorted(tools, reverse=True)}  # the first of a domain
            domains = {name.rpartition("_")[0] for name in dialogue["services"]}
            offered = [*dialogue["services"], *(name for domain, name in names.items() if domain not in domains)]
            for place, turn in enumerate(dialogue["turns"]):
                if turn["speaker"] != "USER":
                    continue
                intents = {frame["service"]: frame["state"]["active_intent"] for frame in turn["frames"]}
                stated = [
                    frame["service"]
                    for frame in turn["frames"]
                    if any(action["act"] == "INFORM_INTENT" for action in frame["actions"])
                ]
                turns = [one["utterance"] for one in dialogue["turns"][max(0, place + 1 - TURNS) : place + 1]]
                options = [tool for name in offered for tool in tools[name]]
                if len(stated) == 1:
                    without = [tool for name in offered if name != stated[0] for tool in tools[name]]
                    yield Conversation(turns, options, f"{stated[0]}_{intents[stated[0]]}", without)
                elif {*intents.values()} == {"NONE"}:
                    yield Conversation(turns, options, "", options)


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
    half = len(data.tested) // 2
    right = {
        "answered": [choose(one.turns, one.options) == one.right for one in data.tested[:half]],
        "left_out": [choose(one.turns, one.without) is None for one in data.tested[half:]],
        "no_intent": [choose(one.turns, one.options) is None for one in data.idle],
    }
    none = [*right["left_out"], *right["no_intent"]]
    shares = {f"right_{group}": 100 * statistics.mean(found) for group, found in right.items()}
    everything = [*right["answered"], *none]
    return {"accuracy": 100 * statistics.mean(everything), "right_none": 100 * statistics.mean(none), **shares}


def _milliseconds(choose: Choose, ranker: Ranker, data: Data) -> dict[str, float]:
    times = []
    ranker.reader = CandidateReader()  # without what was read before
    for one in data.idle[:20]:
        start = time.process_time()
        choose(one.turns, data.timed)
        times.append(1e3 * (time.process_time() - start))
    return {"first_ms": times[0], "ms": statistics.median(times[1:])}


def _calibrated(ranker: Ranker, data: Data) -> Choose:
    examples = [_example(one) for one in data.fitted]
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
    for one in data.fitted:
        for options in (one.options, one.without):
            best, cosine = nearest(one.turns, options)
            found.append((cosine, best == one.right, options is one.without))
    threshold = max(
        (cosine for cosine, _, _ in found),
        key=lambda least: sum(none if cosine < least else right for cosine, right, none in found),
    )

    def choose(turns: list[str], options: list[Tool]) -> str | None:
        best, cosine = nearest(turns, options)
        return best if cosine >= threshold else None

    return choose


def _example(one: Conversation) -> Example:
    texts = {tool["name"]: option_text(tool) for tool in one.options}
    return Example(one.turns, texts[one.right], list(texts.values()))


def _trained(encoder: str, data: Data, folder: Path, *, updates: int) -> Ranker:
    settings: dict[str, Any] = {"train": "sgd", "out": str(folder / "trained"), "backbone": encoder}
    settings |= {"architecture": "bi", "candidates": "inline", "batch_size": BATCH, "max_updates": updates}
    settings |= {"learning_rate": 1e-4, "freeze_candidates": True}
    train, valid = map(_example, data.train), map(_example, data.fitted[:100])
    report = train_ranker(TrainSettings(**settings), train=list(train), valid=list(valid))
    return Ranker.load(report.out)


if __name__ == "__main__":
    main()
