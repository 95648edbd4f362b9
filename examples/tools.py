"""Train a ranker to choose the tool that a conversation needs, or none, and measure it on tools it has never seen.

    python examples/tools.py DATA runs/tools

DATA has a file of turns and one of tools for each of train, dev and test: `train.jsonl` with lines such as
`{"messages": [...], "tools": ["get_weather"]}` (no names: no tool is needed), and `train.json`, a list of tools in
OpenAI's or MCP's format. The ranker reads the last messages, and "no tool" is an option like the others. A calibration
on dev gives each choice a probability, and promises the risk of those above a threshold.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from polyencoder import InputError, Ranker, Selector
from polyencoder.text.options import option_text
from polyencoder.training import TrainSettings, train_ranker

NO_TOOL = "No tool is needed: thanks, greetings, farewells and small talk."
LAST = 5  # messages


def read(data: Path, split: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The turns of a split, and its tools by name."""
    lines = (data / f"{split}.jsonl").read_text(encoding="utf-8").split("\n")
    turns = [json.loads(line) for line in lines if line]
    tools = json.loads((data / f"{split}.json").read_text(encoding="utf-8"))
    return turns, {tool.get("function", tool)["name"]: tool for tool in tools}


def read_examples(data: Path, split: str) -> list[dict[str, Any]]:
    """Turns with at most one tool, as examples of a ranker: a context, the right text, and all texts."""
    turns, tools = read(data, split)
    texts = {name: option_text(tool) for name, tool in tools.items()}
    return [
        {
            "context": [message["content"] for message in turn["messages"][-LAST:]],
            "response": texts[turn["tools"][0]] if turn["tools"] else NO_TOOL,
            "candidates": [*texts.values(), NO_TOOL],
        }
        for turn in turns
        if len(turn["tools"]) <= 1
    ]


def measure(ranker: Ranker, data: Path) -> None:
    """Prints how often the first choice is right, how well "no tool" is told apart, and the time of a choice."""
    turns, tools = read(data, "test")
    trained = read(data, "train")[1]
    options = [*tools.values(), NO_TOOL]
    selector, right, scores, seconds = Selector(ranker), [], [], []
    for turn in turns:
        start = time.process_time()
        chosen = selector.select(turn["messages"][-LAST:], options).chosen
        seconds.append(time.process_time() - start)
        none = next(choice.score for choice in chosen if choice.name is None)
        best = next(choice for choice in chosen if choice.name is not None)
        right.append(best.name in turn["tools"])
        scores.append(none - best.score)
    right, needs = np.array(right), np.array([bool(turn["tools"]) for turn in turns])
    seen = np.array([any(name in trained for name in turn["tools"]) for turn in turns])
    print(f"R@1 of {len(tools)} tools: {right[needs].mean():.3f}", end="")
    print(f" (seen in training {right[seen].mean():.3f}, unseen {right[needs & ~seen].mean():.3f})")
    print(f"AUROC of 'no tool': {roc_auc_score(~needs, scores):.3f}; {1e3 * np.median(seconds):.1f} ms a choice")


def main(
    data: str = "tools",
    out: str = "runs/tools",
    *,
    architecture: str = "bi",
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    precision: str = "float32",
    max_updates: int | None = None,
) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev"):
        lines = (json.dumps(example) + "\n" for example in read_examples(Path(data), split))
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    train_ranker(
        TrainSettings(
            train=str(folder / "train.jsonl"),
            valid=str(folder / "dev.jsonl"),
            out=str(folder / "model"),
            backbone=encoder,
            architecture=architecture,
            batch_size=64,
            learning_rate=1e-4,
            share_encoders=True,  # generalises better to new tools than an encoder for each side
            text_truncate=128,
            label_truncate=128,  # descriptions of tools and parameters are longer than replies
            epochs=1,
            precision=precision,
            max_updates=max_updates,
        )
    )
    measure(Ranker.load(encoder), Path(data))
    ranker = Ranker.load(folder / "model")
    measure(ranker, Path(data))
    try:
        fitted = ranker.calibrate(folder / "dev.jsonl", risk=0.25)
        print(*fitted.calibration.promises, f"The smallest risk that could be promised is {fitted.least_risk:.2f}.")
    except InputError as error:  # so few examples cannot promise it
        print(error)
        ranker.calibrate(folder / "dev.jsonl")
    ranker.calibration.save(folder / "model")


if __name__ == "__main__":
    main(*sys.argv[1:])
