"""A new architecture: a class of a few methods, and every command can train, index and serve it.

    python examples/new_architecture.py runs/gated

Here a bi-encoder of one tower whose context vectors are multiplied by a gate that is trained with it. In the project
itself the class is a file in `modeling/`, what it can do is in `capabilities.py`, and its name a line in `families.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from polyencoder import Ranker, RankerConfig
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.base import RankerModel
from polyencoder.modeling.families import FAMILIES, Family
from polyencoder.modeling.pooling import reduce
from polyencoder.scoring import ContextEncoding
from polyencoder.text import TokenBatch
from polyencoder.training import TrainSettings, train_ranker

DATA = Path(__file__).parent / "support"


class GatedEncoder(RankerModel):
    """score = (gate * mean(T(context))) . mean(T(candidate))."""

    title = "gated encoder"

    def __init__(self, config: RankerConfig, backbone: Backbone) -> None:
        super().__init__(config)
        self.tower, self.gate = backbone, nn.Parameter(torch.ones(backbone.dim))

    @property
    def dim(self) -> int:
        return self.tower.dim

    def encode_context(self, tokens: TokenBatch) -> ContextEncoding:
        return ContextEncoding((self._average(tokens) * self.gate).unsqueeze(1))  # [batch, one vector, dim]

    def encode_candidates(self, tokens: TokenBatch) -> Tensor:
        return self._average(tokens)

    def candidate_modules(self) -> list[nn.Module]:
        return [self.tower]  # an index is valid as long as these weights are the same

    def _average(self, tokens: TokenBatch) -> Tensor:
        return reduce(self.tower(tokens), tokens.mask, reduction="mean")


def main(
    out: str = "runs/gated", *, encoder: str = "sentence-transformers/all-MiniLM-L6-v2", max_updates: int = 20
) -> None:
    FAMILIES["gated"] = Family(GatedEncoder)
    files = {"train": str(DATA / "train.jsonl"), "valid": str(DATA / "valid.jsonl")}
    lengths = {"text_truncate": 32, "label_truncate": 32}
    settings = {
        **files,
        **lengths,
        "backbone": encoder,
        "architecture": "gated",
        "out": out,
        "max_updates": max_updates,
    }
    report = train_ranker(TrainSettings(**settings))
    ranker = Ranker.load(report.out)
    print(ranker)
    index = ranker.index(["Parcels take three days.", "We open at nine."])
    print(ranker.search("when will my parcel be here ?", index, top_k=1)[0].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
