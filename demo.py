"""`make demo`: train a poly-encoder, evaluate it, and watch it choose replies.

Everything here is what a user would type: ParlAI's train command with our agent, then the library on the model file
that it wrote.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from parlai.agents.repeat_label.repeat_label import RepeatLabelAgent
from parlai.core.params import ParlaiParser
from parlai.core.worlds import create_task
from parlai.scripts.train_model import TrainModel

from polyencoder import Ranker
from polyencoder.index.folder import remove_index

SAMPLE = "selection:sample"

# What a demo leaves: the model, its replies, and the candidates of a chat with their index
MADE = ["model", "model-replies", "model.cands-*.cands", "model.model.cands-*.cands.index"]
MADE += [f"model.{end}" for end in ("dict", "opt", "png", "run.json", "test", "tokenizer.json", "trainstats", "valid")]
MADE += [f"model.checkpoint{end}" for end in ("", ".opt", ".trainstats")]

# From scratch, for the sample task: learnt in about a minute on two cores. Five epochs, with a validation after each:
# in more of them the validation's recall stays where it is, and its loss rises.
FROM_SCRATCH: dict[str, Any] = {
    "embedding_size": 128,
    "ffn_size": 256,
    "n_layers": 2,
    "n_heads": 4,
    "poly_n_codes": 16,
    "reduction_type": "mean",
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "text_truncate": 128,
    "label_truncate": 32,
    "batchsize": 64,
    "eval_batchsize": 64,
    "learningrate": 2e-3,
    "lr_scheduler": "linear",
    "warmup_updates": 50,
    "max_train_steps": 320,
    "validation_every_n_epochs": 1,
    "validation_patience": 2,
    "log_every_n_secs": 10,
}

# Fine-tuning a pre-trained sentence encoder: the recipe of docs/benchmarks.md, for a few minutes only.
FINE_TUNING: dict[str, Any] = {
    "poly_n_codes": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "mutators": "flatten",
    "batchsize": 32,
    "eval_batchsize": 32,
    "learningrate": 1e-4,
    "lr_scheduler": "linear",
    "warmup_updates": 10,
    "max_train_steps": 60,
    "validation_max_exs": 500,
    "short_final_eval": True,
    "log_every_n_secs": 10,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default=SAMPLE, help="ParlAI task to train on")
    parser.add_argument("--datapath", help="ParlAI's data folder, for tasks with files")
    parser.add_argument("--backbone", help="pre-trained encoder, folder or hub id; default: from scratch")
    parser.add_argument("--folder", default="runs/demo", help="where the model goes, instead of the last demo's")
    args = parser.parse_args(arguments)

    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_last(folder)
    model_file = str(folder / "model")
    where = {"datapath": args.datapath} if args.datapath else {}
    settings = FINE_TUNING | {"backbone": args.backbone} if args.backbone else FROM_SCRATCH

    _say(f"1. Training a poly-encoder on {args.task}")
    TrainModel.main(model="polyencoder", task=args.task, model_file=model_file, **where, **settings)

    _say("2. Three dialogues: the five best of 20 candidates with their scores; * marks the right answer")
    ranker = Ranker.from_pretrained(model_file)
    for context, candidates, label in _examples(args.task, where, count=3):
        print()
        for turn in context:
            print(textwrap.indent(turn, "    "))
        for ranked in ranker.rank(context, candidates, top_k=5):
            print(f"  {'*' if ranked.text == label else ' '} {ranked.score:8.2f}  {ranked.text}")

    replies = folder / "model-replies"
    ranker.index(sorted({one for _, some, _ in _examples(args.task, where, count=50) for one in some}), replies)

    _say("3. Your turn")
    options = f" --datapath {args.datapath}" if args.datapath else ""
    print(f"  chat with it:      .venv/bin/parlai interactive -mf {model_file}{options}")
    print(
        f"  on a page:         .venv/bin/polyencoder serve -m {model_file} -i {replies}  (open http://127.0.0.1:8000/)"
    )
    print(f"  evaluate it again: .venv/bin/parlai eval_model -mf {model_file} -t {args.task}{options}")
    print(f"  see its choices:   .venv/bin/parlai display_model -mf {model_file} -t {args.task}{options}")
    print("  train on your own data: see README.md")


def _remove_last(folder: Path) -> None:
    """Remove what an earlier demo has written, and nothing else that may be in the folder."""
    for name in MADE:
        for path in folder.glob(name):
            remove_index(path) if path.is_dir() else path.unlink()


def _examples(task: str, where: dict[str, str], *, count: int) -> Iterator[tuple[list[str], list[str], str]]:
    """The last turn of some validation dialogues: context, candidates, label."""
    opt = ParlaiParser(True, False).parse_kwargs(task=task, datatype="valid", **where)
    world = create_task(opt, RepeatLabelAgent(opt))
    context: list[str] = []
    while count and not world.epoch_done():
        world.parley()
        message = world.get_acts()[0]
        context.append(message["text"])
        label = (message.get("eval_labels") or message["labels"])[0]
        if message["episode_done"]:
            yield list(context), list(message.get("label_candidates") or [label]), label
            context = []
            count -= 1
        else:
            context.append(label)


def _say(text: str) -> None:
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}", flush=True)


if __name__ == "__main__":
    main()
