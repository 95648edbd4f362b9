"""ConveRT from scratch: a vocabulary of your own texts, a small model without a pre-trained encoder, a search with it.

    python examples/convert_from_scratch.py runs/convert

160 questions are enough to see every step, not for a good model: that needs some 100,000 pairs. The sizes are small,
too; without them the model is the paper's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from polyencoder import Ranker
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"


def main(out: str = "runs/convert", *, max_updates: int = 40) -> None:
    pairs = [json.loads(line) for line in (DATA / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    texts = [text for pair in pairs for text in (*pair["context"], pair["response"])]
    vocabulary = Path(out) / "vocabulary"
    vocabulary.mkdir(parents=True, exist_ok=True)
    subwords = learn_subwords(count_words(texts), SubwordSettings(min_count=3, buckets=100))
    (vocabulary / "tokenizer.json").write_text(subwords.to_str(), encoding="utf-8")

    report = train_ranker(
        TrainSettings(
            train=str(DATA / "train.jsonl"),
            valid=str(DATA / "valid.jsonl"),
            out=f"{out}/model",
            architecture="convert",
            vocabulary=str(vocabulary),
            hidden_size=64,
            intermediate_size=128,
            attention_limits=(3, 48),
            head_sizes=(128, 128),
            scale_batches=20,
            batch_size=32,
            max_updates=max_updates,
            evaluations=0.5,  # an epoch: every ten updates here
        )
    )
    print(
        f"R@1 {report.before['hits@1']:.3f} before, {report.trained['hits@1']:.3f} after training, among 20 candidates"
    )

    ranker = Ranker.load(report.out)
    replies = sorted({pair["response"] for pair in pairs})
    for hit in ranker.search("where is my parcel ?", ranker.index(replies), top_k=3):
        print(f"{hit.score:6.2f}  {hit.text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
