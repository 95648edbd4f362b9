from __future__ import annotations

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from tests.polyencoder.modeling.convert.conftest import TEXTS, batch


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_papers_sizes():
    with torch.device("meta"):
        model = build_model(convert_ranker(ConvertConfig(vocab_size=31_476 + 1_000), convert_text()))
    words = model.encoder.embeddings.words.weight.numel()
    assert words == 16_627_712  # "16M" of Table 2
    assert (
        count(model.encoder.blocks) == 13_397_398
    )  # its "13M": 6 * (4 * 512 * 64 + 2 * 512 * 2048 + biases and norms)
    others = sum(p.numel() for p in model.parameters()) - words
    assert words + 2 * others == pytest.approx(59.5e6, rel=1e-3)  # 8 bits, 16 bits: the paper's 59 MB


@torch.no_grad()
def test_neither_padding_nor_the_batch_changes_a_vector(make_convert):
    model = make_convert()
    vectors, contexts = model.encode_candidates(batch()), model.encode_context(batch()).vectors
    for row, text in enumerate(TEXTS):
        alone = batch([text])
        torch.testing.assert_close(model.encode_candidates(alone)[0], vectors[row], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.encode_context(alone).vectors[0], contexts[row], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(model.encode_candidates(batch().select(order)), vectors[order], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_text_without_tokens_has_a_vector(make_convert):
    vectors = make_convert().encode_candidates(batch([[], [1, 2]]))
    assert vectors.isfinite().all()
    assert make_convert().encode_candidates(batch([[]])).isfinite().all()


@torch.no_grad()
def test_scores_are_cosines_times_the_scale(make_convert):
    model = make_convert(scale_batches=4)
    for _ in range(2):
        model.scale.advance()
    contexts, candidates = model.encode_context(batch()), model.encode_candidates(batch(TEXTS[:3]))
    cosines = torch.cosine_similarity(contexts.vectors, candidates[None], dim=-1)
    torch.testing.assert_close(model.score(contexts, candidates), cosines * (1 + 10**0.5) / 2)
    torch.testing.assert_close(model(batch(), batch(TEXTS[:3])), cosines * (1 + 10**0.5) / 2)


def test_order_matters_and_everything_learns(make_convert):
    model = make_convert().train()
    first, second = model.encode_candidates(batch([[1, 2, 3], [3, 2, 1]]))
    assert (first - second).abs().max() > 1e-3
    (model(batch(), batch()).square().sum() + model(batch(), batch()).sum()).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


def test_blocks_are_shared_and_heads_are_not(make_convert):
    model = make_convert()
    names = {name.partition(".")[0] for name, _ in model.named_parameters()}
    assert names == {"encoder", "context_head", "response_head", "skip"}
    with torch.no_grad():
        same = model.encode_context(batch()).vectors.squeeze(1) / model.scale()
        assert (same - model.encode_candidates(batch())).abs().max() > 0.1


@torch.no_grad()
def test_bfloat16_is_near(make_convert):
    model = make_convert()
    with torch.autocast("cpu", torch.bfloat16):
        near = model(batch(), batch())
    torch.testing.assert_close(near, model(batch(), batch()), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"attention_limits": (3, "5")}, "attention_limits"),
        ({"activation": "tanh"}, "activation"),
    ],
)
def test_sizes_that_cannot_be(make_convert, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_convert(**fields)


def test_a_configuration_is_the_same_when_it_has_been_written():
    config = ConvertConfig(vocab_size=50, attention_limits=(1, 2), multi_context=True)
    ranker = convert_ranker(config, convert_text(extra_contexts=10))
    again = type(ranker).from_json(ranker.to_json(), origin="config.json")
    assert again == ranker
    assert again.convert == config
    with pytest.raises(ConfigError, match="config.json: unknown setting 'convert.layers'"):
        type(ranker).from_json(ranker.to_json().replace('"skips"', '"layers"'), origin="config.json")


def test_a_single_context_model_reads_one_turn():
    config = ConvertConfig(vocab_size=50)
    with pytest.raises(ConfigError, match="history_size must be 1"):
        build_model(convert_ranker(config, convert_text(extra_contexts=3)))
