"""fairseq's step of masked words, on the same batch and an encoder of the same sizes, for `benchmarks.pretraining`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from benchmarks.common import synchronize
from polyencoder.pretraining.inputs import PairBatch
from polyencoder.pretraining.masking import IGNORED


class Step(NamedTuple):
    seconds: float
    loss: float
    """Per masked word, in nats."""


def fairseq_stepping(
    batch: PairBatch,
    *,
    layers: int,
    dim: int,
    heads: int,
    vocabulary_size: int,
    longest: int,
    clock: Callable[[], float],
) -> Callable[[], Step]:
    """A function that makes one step with fairseq's model, loss and Adam; `clock` returns seconds."""
    try:
        from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
        from fairseq.data import Dictionary
        from fairseq.models.roberta import RobertaModel
        from fairseq.models.roberta.model import base_architecture
        from fairseq.optim.adam import Adam
    except ImportError as error:
        raise SystemExit(f"the case fairseq compares with fairseq ({error}): see docs/pretraining.md") from None
    dictionary = Dictionary()
    for number in range(vocabulary_size - len(dictionary)):
        dictionary.add_symbol(f"word{number}")
    arguments = Namespace(
        encoder_layers=layers,
        encoder_embed_dim=dim,
        encoder_ffn_embed_dim=4 * dim,
        encoder_attention_heads=heads,
        max_positions=longest,
        tokens_per_sample=longest,
        tpu=False,
    )
    base_architecture(arguments)
    task = Namespace(source_dictionary=dictionary, dictionary=dictionary, target_dictionary=dictionary)
    model: nn.Module = RobertaModel.build_model(arguments, task).train().to(batch.contexts.ids.device)
    loss_of = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    optimizer = Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.98))

    assert batch.targets is not None
    padding, first = dictionary.pad(), len(Dictionary())  # our ids go behind fairseq's special tokens
    mask = batch.contexts.mask.bool()
    tokens = (batch.contexts.ids + first).masked_fill(~mask, padding)
    targets = (batch.targets + first).masked_fill(batch.targets == IGNORED, padding)
    sample = {
        "net_input": {"src_tokens": tokens, "src_lengths": mask.sum(1)},
        "target": targets,
        "ntokens": int(mask.sum()),
        "nsentences": len(tokens),
    }

    def step() -> Step:
        synchronize()
        start = clock()
        optimizer.zero_grad()
        loss, words, _ = loss_of(model, sample)
        loss = loss / words
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        synchronize()
        return Step(clock() - start, float(loss.detach()))

    return step
