"""What a pre-trained model says of an example, for people to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from polyencoder.pretraining.batches import PairInputs
from polyencoder.pretraining.corpus import PairExample
from polyencoder.pretraining.inputs import PairBatch, PairInput, pair_batch, pair_input
from polyencoder.pretraining.masking import IGNORED
from polyencoder.pretraining.start import Pretrained

__all__ = ["render_prediction"]


@torch.no_grad()
def render_prediction(pretrained: Pretrained, inputs: PairInputs, pair: PairExample) -> str:
    """The words that it finds for those that are asked for, and how likely its response and another one follow."""
    model, text = pretrained.model, pretrained.text
    asked = _batch(pretrained, [inputs.masked(pair, np.random.default_rng(pair.key))])
    assert asked.targets is not None
    chosen = asked.targets != IGNORED
    guessed = model.masked_logits(asked.contexts, chosen).argmax(1).tolist()
    words = []
    for guess, target in zip(guessed, asked.targets[chosen].tolist(), strict=True):
        found, expected = (text.tokenizer.decode([token]).strip() for token in (guess, target))
        words.append(found if guess == target else f"{found} (not {expected})")
    shown = f"masked words: {', '.join(words)}"
    responses = [pair.label, *([pair.other] if pair.other is not None else [])]
    apart = model.next_utterance is None
    if apart and len(responses) == 1:  # nothing to choose from
        return shown
    both = [pair_input(text, pair.turns, one, longest=pretrained.longest, apart=apart) for one in responses]
    if apart:
        sequences = [both[0].ids[: both[0].context], *(one.ids[one.context :] for one in both)]
        tokens = text.pad(sequences).to(pretrained.device)
        likely = model.response_scores(tokens, contexts=1)[0].softmax(0).tolist()
    else:
        batch = _batch(pretrained, [replace(one, follows=True) for one in both])
        likely = model.next_scores(batch.contexts).float().sigmoid().tolist()
    said = "; ".join(f"{chance:.0%} {one!r}" for chance, one in zip(likely, responses, strict=True))
    return f"{shown}; follows: {said}"


def _batch(pretrained: Pretrained, inputs: list[PairInput]) -> PairBatch:
    return pair_batch(inputs, pad_id=pretrained.text.pad_id).to(pretrained.device)
