"""Embeddings in 8 bits, other weights in 16: how far they are from what they were, and that nothing else differs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.modeling.convert.quantization import QuantizationAwareEmbedding, QuantizedEmbedding, Range
from polyencoder.modeling.trainable import freeze
from tests.polyencoder.modeling.convert.conftest import batch

tables = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=2, max_dims=2, max_side=12),
    elements=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
)


def table_of(values: torch.Tensor) -> QuantizationAwareEmbedding:
    table = QuantizationAwareEmbedding(*values.shape)
    with torch.no_grad():
        table.weight.copy_(values)
    table.update_range()
    return table


@pytest.mark.slow
@settings(max_examples=60)
@given(tables)
def test_no_value_is_further_from_its_code_than_half_a_step_and_there_is_room_around_them(values):
    """A step is a 255th of the range, which spans the values and 0, and a tenth or 0.01 on either side."""
    values = torch.from_numpy(values)
    bounds = Range.from_values(values)
    minimum, maximum = float(values.min()), float(values.max())
    room = max(0.1 * (maximum - minimum), 0.01)
    step = (max(maximum + room, 0) - min(minimum - room, 0)) / 255
    assert float(bounds.scale) == pytest.approx(step, rel=1e-5)
    error = (bounds.dequantize(bounds.quantize(values)) - values).abs()
    assert float(error.max()) <= step / 2 * 1.0001 + 1e-6 * float(values.abs().max())
    assert bounds.dequantize(bounds.quantize(torch.zeros(1))) == 0
    lowest, highest = bounds.dequantize(torch.tensor([0, 255], dtype=torch.uint8)).tolist()
    slack = 0.51 * float(bounds.scale)  # that 0 is one of the codes moves the range by half a step at most
    assert lowest <= minimum - room + slack
    assert highest >= maximum + room - slack


def test_values_beyond_the_range_are_those_of_its_ends():
    bounds = Range.from_values(torch.tensor([-1.0, 1.0]))
    lowest, highest = bounds.dequantize(torch.tensor([0, 255], dtype=torch.uint8))
    assert torch.equal(bounds.dequantize(bounds.quantize(torch.tensor([-9.0, 9.0]))), torch.stack([lowest, highest]))


@pytest.mark.slow
@settings(max_examples=40)
@given(tables)
def test_looked_up_in_8_bits_as_in_training(values):
    values = torch.from_numpy(values)
    table = table_of(values)
    quantized = table.quantize()
    assert isinstance(quantized, QuantizedEmbedding)
    assert quantized.weight.dtype == torch.uint8
    ids = torch.arange(len(values)).flip(0)
    assert torch.equal(quantized(ids), table(ids))
    assert torch.equal(quantized.dequantize()(ids), table(ids))  # and again, when it goes on learning
    assert torch.equal(quantized.dequantize().quantize().weight, quantized.weight)


def test_gradients_go_straight_through_also_beyond_the_range():
    table = table_of(torch.tensor([[0.1, -0.2], [0.3, 0.05]]))
    with torch.no_grad():
        table.weight[1, 0] = 5.0
    table(torch.tensor([1, 1])).square().sum().backward()
    expected = torch.zeros(2, 2)
    expected[1] = 4 * table(torch.tensor([1])).detach()[0]
    assert torch.equal(table.weight.grad, expected)


def test_the_range_is_the_same_until_it_follows():
    table = table_of(torch.tensor([[0.1, -0.2], [0.3, 0.05]])).requires_grad_(False)
    before = table.range.scale.clone()
    with torch.no_grad():
        table.weight[1, 0] = 5.0
    assert float(table(torch.tensor(1))[0]) < 1
    assert torch.equal(table.range.scale, before)
    table.update_range()
    assert float(table(torch.tensor(1))[0]) == pytest.approx(5, abs=0.02)


@pytest.fixture(params=[0, 10], ids=["single", "multi"])
def model(request, make_convert):
    """A tiny quantized model that learns."""
    return make_convert(quantized=True, extra_contexts=request.param, multi_context=request.param > 0)


def contexts():
    return batch([[1, 2, 41, 4, 5], [8], [9, 10, 41, 39]])


def vectors(model) -> list[torch.Tensor]:
    with torch.no_grad():
        tokens = contexts() if model.history else batch()
        return [model.encode_context(tokens).vectors, model.encode_candidates(batch()), model.pooled(tokens)]


def test_the_two_forms_give_the_same_vectors(model):
    copied = model.copy_for_saving()
    assert copied.is_for_inference
    assert not model.is_for_inference
    assert copied.copy_for_saving() is copied
    for actual, expected in zip(vectors(model), vectors(copied), strict=True):
        assert torch.equal(actual, expected)
    again = copy.deepcopy(copied)
    again.prepare_for_training()
    for actual, expected in zip(vectors(again), vectors(copied), strict=True):
        assert torch.equal(actual, expected)


def test_every_weight_but_the_embeddings_has_16_bits(model):
    copied = model.copy_for_saving()
    for name, parameter in copied.named_parameters():
        assert torch.equal(parameter, parameter.half().float()), name
        if parameter.numel() > 1:
            assert not torch.equal(parameter, parameter.bfloat16().float()) or not parameter.any(), name
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, p.half().float())]
    assert len(changed) > 20  # those that learn stay as they were
    assert [name for name, b in copied.named_buffers() if b.dim() == 2] == ["encoder.embeddings.words.weight"]


def test_quantized_is_near_what_it_was(make_convert):
    plain = make_convert()
    model = copy.deepcopy(plain)
    model.quantize()
    assert model.sizes.quantized
    assert not plain.sizes.quantized
    for rounded, exact in zip(vectors(model), vectors(plain), strict=True):
        torch.testing.assert_close(rounded, exact, rtol=0, atol=0.1)
        assert not torch.equal(rounded, exact)


def test_everything_learns_and_gradients_are_those_of_the_rounded_weights(model):
    copied = model.copy_for_saving()
    for parameter in copied.parameters():
        parameter.requires_grad_(True)
    tokens = contexts() if model.history else batch()
    for network in (model, copied):
        encoded = network.encode_objectives(tokens)
        (encoded.vectors * torch.arange(10.0)).square().sum().backward()
        torch.as_tensor(network.encode_candidates(batch())).mul(torch.arange(10.0)).sum().backward()
    expected = dict(copied.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-4, atol=1e-6)


def test_a_frozen_candidate_side_is_frozen_before_it_is_quantized(model):
    freeze(model, fine_tuned="all", freeze_candidates=True)
    trained = {name.split(".")[0] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"context_head"} | ({"history"} if model.history else set())


def test_the_range_follows_every_so_many_batches(make_convert):
    model = make_convert(quantized=True, quantization_update=3)
    words = model.encoder.embeddings.words
    first, scales = float(words.scale), []
    with torch.no_grad():
        words.weight[0, 0] = 50.0
    for _ in range(4):
        model.after_batch()
        scales.append(float(words.scale))
    assert scales[:2] == [first, first]
    assert scales[2] == scales[3] > 10 * first


def test_a_quantized_model_is_built_from_its_configuration(make_convert):
    plain = make_convert()
    plain.quantize(update=7)
    assert plain.config.convert.quantization_update == 7
    with torch.device("meta"):
        again = build_model(plain.config)
    assert again.state_dict().keys() == plain.state_dict().keys()


def test_the_papers_sizes():
    for extra, megabytes in ((0, 59.5), (10, 73.7)):
        sizes = ConvertConfig(vocab_size=31_476 + 1_000, quantized=True, multi_context=extra > 0)
        with torch.device("meta"):
            model = build_model(convert_ranker(sizes, convert_text(extra_contexts=extra)))
            model.prepare_for_inference()
        weights = sum(parameter.numel() for parameter in model.parameters())
        codes = model.encoder.embeddings.words.weight
        assert codes.dtype == torch.uint8
        assert (codes.numel() + 2 * weights) / 1e6 == pytest.approx(megabytes, abs=0.05)
