"""Measures rankers of tools: R@1 on tools that training saw and did not see, "no tool", and the time of a choice.

    python -m benchmarks.tools --data DATA --rankers bi=runs/tools/model late=runs/late/model --mnrl runs/mnrl --json

DATA is the folder that examples/tools.py reads, which also trains the rankers. BM25 (bm25s) and MiniLM are not trained;
`--mnrl` is MiniLM trained by sentence-transformers with MultipleNegativesRankingLoss on the same pairs of context and
tool, lengths, batch and rate, and is made if the folder does not exist. Milliseconds are medians of processor time, of
a choice among the tools of the test split and among `--tools` ones: those of the other splits, and copies of these.
"""

from __future__ import annotations

import runpy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.common import build_parser, find_minilm_folder, import_peer, print_report, train_on_pairs, use_threads
from polyencoder import Ranker
from polyencoder.text.options import option_text

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "tools.py"))
LENGTH = 128  # tokens
Scores = Callable[[Sequence[str], Sequence[str]], Any]
"""(turns, texts of tools) -> a score for each text."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that examples/tools.py reads")
    parser.add_argument("--rankers", nargs="+", default=[], metavar="NAME=MODEL", help="trained by the example")
    parser.add_argument("--backend", default="torch", help="of --rankers: torch, onnx or onnx-int8")
    parser.add_argument("--mnrl", type=Path, help="sentence-transformers' model, trained if it does not exist")
    parser.add_argument("--tools", type=int, default=500)
    flags = parser.parse_args(arguments)
    use_threads(flags.threads)
    turns, timed = (20, 3) if flags.quick else (2000, 100)
    systems: dict[str, Scores] = {"BM25": Words(), "MiniLM": _load_ranker(find_minilm_folder())}
    if flags.mnrl:
        systems["MultipleNegativesRankingLoss"] = _load_sentence_transformer(flags.data, flags.mnrl, quick=flags.quick)
    options = {"backend": flags.backend, "threads": flags.threads or 0}
    named = (ranker.partition("=") for ranker in flags.rankers)
    systems |= {name: _load_ranker(folder, **options) for name, _, folder in named}
    rows = [measure(name, systems[name], flags.data, turns=turns, timed=timed, many=flags.tools) for name in systems]
    report = {
        "benchmark": "tools",
        "settings": {"turns": turns, "timed": timed, "tools": flags.tools},
        "rows": rows,
        "summary": {row["system"]: row["unseen"] for row in rows},
    }
    print_report(report, as_json=flags.json)


def measure(name: str, scores_of: Scores, data: Path, *, turns: int, timed: int, many: int) -> dict[str, Any]:
    """The row of a system."""
    examples, tools = EXAMPLE["read"](data, "test")
    examples, trained_tools = examples[:turns], EXAMPLE["read"](data, "train")[1]
    contexts = [[message["content"] for message in turn["messages"][-EXAMPLE["LAST"] :]] for turn in examples]
    names, texts = [*tools], [*map(option_text, tools.values()), EXAMPLE["NO_TOOL"]]
    scores_of(contexts[0], texts)  # reads the tools
    scores, milliseconds = _time_scores(scores_of, contexts, texts)
    many_texts = [*texts, *_read_others(data, many - len(tools))]
    scores_of(contexts[0], many_texts)
    _, milliseconds_of_many = _time_scores(scores_of, contexts[:timed], many_texts)
    right = np.array([names[row[:-1].argmax()] in turn["tools"] for row, turn in zip(scores, examples, strict=True)])
    needs = np.array([bool(turn["tools"]) for turn in examples])
    seen = np.array([any(tool in trained_tools for tool in turn["tools"]) for turn in examples])
    return {
        "system": name,
        "R@1": right[needs].mean().item(),
        "seen": right[seen].mean().item(),
        "unseen": right[needs & ~seen].mean().item(),
        "none_auroc": float(roc_auc_score(~needs, [row[-1] - row[:-1].max() for row in scores])),
        f"ms_{len(tools)}": milliseconds,
        f"ms_{many}": milliseconds_of_many,
    }


def _time_scores(scores_of: Scores, contexts: Sequence[Sequence[str]], texts: Sequence[str]) -> tuple[list[Any], float]:
    scores, milliseconds = [], []
    for turns in contexts:
        start = time.process_time()
        scores.append(scores_of(turns, texts))
        milliseconds.append(1e3 * (time.process_time() - start))
    return scores, statistics.median(milliseconds)


def _read_others(data: Path, count: int) -> list[str]:
    """The texts of other tools, and numbered copies of them."""
    texts = [option_text(tool) for split in ("train", "dev") for tool in EXAMPLE["read"](data, split)[1].values()]
    return [f"{i // len(texts)} {texts[i % len(texts)]}" for i in range(count)]


class Words:
    """BM25 of the words of all turns."""

    def __init__(self) -> None:
        self._bm25s = import_peer("bm25s")
        self._tokens = partial(self._bm25s.tokenize, stopwords="en", show_progress=False)
        self._read: Sequence[str] = ()

    def __call__(self, turns: Sequence[str], texts: Sequence[str]) -> Any:
        if texts != self._read:
            self._index = self._bm25s.BM25()
            self._index.index(self._tokens([text.replace("_", " ") for text in texts]), show_progress=False)
            self._read = texts
        (words,) = self._tokens([" ".join(turns)], return_ids=False)
        return self._index.get_scores(words) if words else np.zeros(len(texts))


def _load_ranker(folder: str | Path, **options: Any) -> Scores:
    ranker = Ranker.load(folder, **options)
    return lambda turns, texts: ranker.score([turns], texts)[0]


def _load_sentence_transformer(data: Path, folder: Path, *, quick: bool) -> Scores:
    library = import_peer("sentence_transformers")
    if not folder.exists():
        trained = library.SentenceTransformer(str(find_minilm_folder()), device="cpu")
        trained.max_seq_length = LENGTH
        pairs = EXAMPLE["read_examples"](data, "train")[: 64 if quick else None]
        rows = [{"anchor": "\n".join(pair["context"]), "positive": pair["response"]} for pair in pairs]
        options = {"num_train_epochs": 1, "learning_rate": 1e-4, "warmup_steps": 0.1, "bf16": True, "seed": 0}
        train_on_pairs(trained, rows, per_device_train_batch_size=64, **options)
        trained.save(str(folder))
    model, read = library.SentenceTransformer(str(folder), device="cpu"), {}

    def score(turns: Sequence[str], texts: Sequence[str]) -> Any:
        if (key := tuple(texts)) not in read:
            read[key] = model.encode(list(texts), normalize_embeddings=True)
        return model.encode("\n".join(turns), normalize_embeddings=True) @ read[key].T

    return score


if __name__ == "__main__":
    main(sys.argv[1:])
