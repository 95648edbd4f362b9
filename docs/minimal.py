"""A poly-encoder in plain PyTorch: what to read before the library.

    python docs/minimal.py sentence-transformers/all-MiniLM-L6-v2 pairs.jsonl

`pairs.jsonl` has a pair in each line: {"context": ["hello", "hi, how are you ?"], "response": "fine, and you ?"}. The
script trains on all lines but the last tenth, reports how often the right response of a held-out line is ranked first
among 20, and answers what is typed. The library computes the same scores, faster; tests/docs/test_minimal.py compares
them. Sections are those of Humeau et al., "Poly-encoders" (ICLR 2020).
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

CONTEXT_TOKENS, RESPONSE_TOKENS = 360, 72
BATCH_SIZE = 32


class PolyEncoder(nn.Module):
    """Two transformers that start with equal weights, and m codes (Section 4.4)."""

    def __init__(self, encoder: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, n_codes: int = 64) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.context_encoder = encoder
        self.candidate_encoder = copy.deepcopy(encoder)
        dim = encoder.config.hidden_size
        self.codes = nn.Parameter(torch.randn(n_codes, dim) / dim**0.5)

    def tokenize(self, texts: Sequence[str], *, max_tokens: int, side: str) -> dict[str, Tensor]:
        """Token ids and mask of texts: [batch, length]. A context that is too long loses its beginning."""
        self.tokenizer.truncation_side = side
        batch = self.tokenizer(list(texts), max_length=max_tokens, truncation=True, padding=True, return_tensors="pt")
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    def encode_contexts(self, contexts: Sequence[Sequence[str]]) -> Tensor:
        """Encodes dialogues: [batch, m, dim]. Each code attends over the outputs of all tokens."""
        separator = f" {self.tokenizer.sep_token} "
        texts = [separator.join(turns) for turns in contexts]
        tokens = self.tokenize(texts, max_tokens=CONTEXT_TOKENS, side="left")
        outputs = self.context_encoder(**tokens).last_hidden_state  # [batch, length, dim]
        logits = self.codes @ outputs.transpose(1, 2)  # [batch, m, length]
        logits = logits.masked_fill(tokens["attention_mask"][:, None] == 0, -torch.inf)
        return logits.softmax(-1) @ outputs

    def encode_candidates(self, texts: Sequence[str]) -> Tensor:
        """Encodes responses: [n, dim], the first output of each (Section 4.2). They can be computed in advance."""
        tokens = self.tokenize(texts, max_tokens=RESPONSE_TOKENS, side="right")
        return self.candidate_encoder(**tokens).last_hidden_state[:, 0]


def score(contexts: Tensor, candidates: Tensor) -> Tensor:
    """Scores all candidates [n, dim] for all contexts [batch, m, dim]: [batch, n].

    A candidate attends over the m vectors of a context. Its product with their weighted sum is the weighted sum of its
    products.
    """
    logits = contexts @ candidates.T  # [batch, m, n]
    return (logits.softmax(1) * logits).sum(1)


Pair = tuple[list[str], str]
"""A context, as its turns, and the response."""


def train(model: PolyEncoder, pairs: Sequence[Pair], *, epochs: int = 1, learning_rate: float = 5e-5) -> None:
    """Trains with the other responses of the batch as negatives (Section 4.2)."""
    encoders = [*model.context_encoder.parameters(), *model.candidate_encoder.parameters()]
    # The codes are new: at the rate of a trained encoder they would not move.
    optimizer = torch.optim.AdamW(
        [{"params": encoders}, {"params": [model.codes], "lr": 100 * learning_rate, "weight_decay": 0.0}],
        lr=learning_rate,
    )
    steps = epochs * (len(pairs) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / max(1, steps))
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(pairs)).tolist()
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            contexts, responses = zip(*(pairs[idx] for idx in order[start : start + BATCH_SIZE]), strict=True)
            scores = score(model.encode_contexts(contexts), model.encode_candidates(responses))
            loss = cross_entropy(scores, torch.arange(len(scores)))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(f"loss {loss.item():.3f}", end="\r", file=sys.stderr)


@torch.inference_mode()
def evaluate(model: PolyEncoder, pairs: Sequence[Pair], *, n: int = 20) -> float:
    """R@1: how often the right response has the best score among `n` of the file. A tie counts as wrong."""
    model.eval()
    hits, count = 0, 0
    for start in range(0, len(pairs) - n + 1, n):
        contexts, responses = zip(*pairs[start : start + n], strict=True)
        scores = score(model.encode_contexts(contexts), model.encode_candidates(responses))
        right = scores.diagonal()[:, None]
        hits += int(((scores >= right).sum(1) == 1).sum())
        count += n
    return hits / count


class Index:
    """Responses with their vectors; a search scores all of them."""

    @torch.inference_mode()
    def __init__(self, model: PolyEncoder, texts: Sequence[str]) -> None:
        self.model, self.texts = model.eval(), list(texts)
        parts = (self.texts[start : start + BATCH_SIZE] for start in range(0, len(self.texts), BATCH_SIZE))
        self.vectors = torch.cat([model.encode_candidates(part) for part in parts])

    @torch.inference_mode()
    def search(self, context: Sequence[str], *, top_k: int = 5) -> list[tuple[float, str]]:
        """Finds the best responses, best first: (score, text)."""
        scores = score(self.model.encode_contexts([context]), self.vectors)[0]
        best = scores.topk(min(top_k, len(self.texts)))
        return [
            (value, self.texts[idx]) for value, idx in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


def main(encoder: str, path: str) -> None:
    with Path(path).open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    pairs = [(record["context"], record["response"]) for record in records]
    held_out = max(20, len(pairs) // 10)
    torch.manual_seed(0)
    model = PolyEncoder(AutoModel.from_pretrained(encoder), AutoTokenizer.from_pretrained(encoder))
    train(model, pairs[:-held_out])
    print(f"R@1/20 {100 * evaluate(model, pairs[-held_out:]):.1f} on {held_out} pairs")
    index = Index(model, list(dict.fromkeys(response for _, response in pairs)))
    dialogue: list[str] = []
    for line in sys.stdin:
        dialogue.append(line.strip())
        dialogue.append(index.search(dialogue, top_k=1)[0][1])
        print(dialogue[-1], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
