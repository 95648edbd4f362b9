"""A ParlAI task and a ParlAI agent of your own: a teacher of a shop's questions, and a bi-encoder that names the topic.

    python examples/parlai_task.py runs/shop/model

Both are registered under the name "shop", so ParlAI's scripts find them as `-t shop` and `-m shop`. If your data are
JSON lines already, `-t selection:jsonl` needs no code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from parlai.agents.biencoder.biencoder import BiencoderAgent
from parlai.core.agents import create_agent_from_model_file
from parlai.core.loader import register_agent, register_teacher
from parlai.core.message import Message
from parlai.scripts.train_model import TrainModel
from parlai.tasks.selection.teacher import SelectionTeacher

from polyencoder.data.example import Example

DATA = Path(__file__).parent / "support"
REPLIES = [json.loads(line) for line in (DATA / "replies.jsonl").read_text(encoding="utf-8").splitlines()]
TOPICS = {reply["text"]: reply["metadata"]["topic"] for reply in REPLIES}


@register_teacher("shop")
class ShopTeacher(SelectionTeacher):
    """Questions and their right replies; wrong ones are sampled. It streams and resumes like `selection:` tasks."""

    def files(self, split: str) -> list[str]:
        return [str(DATA / ("train.jsonl" if split == "train" else "valid.jsonl"))]

    def read(self, file: str, bad: object) -> Iterator[list[Example]]:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield [Example(row["context"], row["response"])]  # an episode of one turn


@register_agent("shop")
class ShopAgent(BiencoderAgent):
    """A bi-encoder whose replies say which topic they are about, for example to call the right colleague."""

    def batch_act(self, observations: list[Message]) -> list[Message]:
        replies = super().batch_act(observations)
        for reply in replies:
            reply["topic"] = TOPICS.get(reply.get("text"), "none")
        return replies


def main(
    model_file: str = "runs/shop/model",
    *,
    encoder: str = "sentence-transformers/all-MiniLM-L6-v2",
    max_updates: int = 10,
) -> None:
    lengths = {"text_truncate": 32, "label_truncate": 32}
    steps = {"max_train_steps": max_updates + 1, "validation_every_n_steps": max_updates}
    TrainModel.main(
        task="shop", model="shop", model_file=model_file, backbone=encoder, learningrate=1e-4, **lengths, **steps
    )

    candidates = Path(model_file).parent / "replies.txt"
    candidates.write_text("".join(f"{reply['text']}\n" for reply in REPLIES), encoding="utf-8")
    agent = create_agent_from_model_file(
        model_file, {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates)}
    )
    for question in ("can my rain jacket go into the washing machine", "when will I get my refund"):
        agent.observe({"id": "customer", "text": question, "episode_done": True})
        reply = agent.act()
        print(f"[{reply['topic']}] {reply['text']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
