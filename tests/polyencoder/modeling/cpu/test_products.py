"""oneDNN's linear layers are those of float64, forward and backward, and small or other ones stay torch's."""

from __future__ import annotations

import os
import platform

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder import processor as known_processor
from polyencoder.modeling.cpu import products
from polyencoder.modeling.cpu.products import apply_linear, apply_scaled_linear, is_onednn_faster

pytestmark = [
    pytest.mark.skipif(
        not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch was built without oneDNN"
    ),
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def everything_goes_there(monkeypatch):
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)


@pytest.fixture(autouse=True)
def nothing_is_remembered():
    is_onednn_faster.cache_clear()
    yield
    is_onednn_faster.cache_clear()


def results(function, tensors, gradient):
    """The output, and the gradients of all inputs that want one."""
    leaves = [None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    output = function(*leaves)
    if output.requires_grad:
        output.backward(gradient.to(output.dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


sizes = st.integers(1, 40)


@given(st.lists(sizes, min_size=1, max_size=2), sizes, sizes, st.booleans(), st.tuples(*[st.booleans()] * 3))
@settings(deadline=None, max_examples=60)
def test_values_and_gradients(batch, inputs, outputs, has_bias, learns):
    torch.manual_seed(sum(batch) + inputs + outputs)
    tensors = [
        torch.randn(*batch, inputs, requires_grad=learns[0]),
        torch.randn(outputs, inputs, requires_grad=learns[1]),
        torch.randn(outputs, requires_grad=learns[2]) if has_bias else None,
    ]
    gradient = torch.randn(*batch, outputs)
    double = [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    for ours, exact in zip(results(apply_linear, tensors, gradient), results(F.linear, double, gradient), strict=True):
        assert (ours is None) == (exact is None)
        if ours is not None:
            torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-4)


def test_tensors_that_are_views():
    """Transposed, expanded and sliced ones, as models have them, and the gradient of a sum."""
    x, weight = torch.randn(6, 10).t()[1:], torch.randn(8, 12)[::2, ::2].requires_grad_()
    bias = torch.randn(1).expand(4).requires_grad_()
    torch.testing.assert_close(apply_linear(x, weight, bias), F.linear(x, weight, bias))
    apply_linear(x, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand(4, 6))


@pytest.mark.parametrize("shape", [(0, 6), (2, 0, 6)])
def test_nothing(shape):
    assert apply_linear(torch.randn(shape), torch.randn(4, 6)).shape == (*shape[:-1], 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_torchs(monkeypatch, dtype):
    monkeypatch.setattr(products, "_multiply", None)
    x, weight = torch.randn(5, 6, dtype=dtype), torch.randn(4, 6, dtype=dtype)
    assert torch.equal(apply_linear(x, weight), F.linear(x, weight))


def test_what_is_small_is_torchs(monkeypatch):
    monkeypatch.setattr(products, "MIN_PRODUCTS", 5 * 6 * 4 + 1)
    monkeypatch.setattr(products, "_multiply", None)
    x, weight = torch.randn(5, 6), torch.randn(4, 6)
    assert torch.equal(apply_linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize(("set_before", "expected"), [({}, "64"), ({"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7"}, "7")])
def test_memory_of_shapes_is_bounded(monkeypatch, set_before, expected):
    """oneDNN reads a variable when it is first used."""
    monkeypatch.setattr(os, "environ", dict(set_before))
    products.limit_shape_cache()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == expected


# ---- where it is faster


@pytest.mark.parametrize(
    ("mkl", "capability", "maker", "faster"),
    [
        (True, "AVX512", "AuthenticAMD", True),
        (True, "AVX512", "GenuineIntel", False),
        (True, "AVX2", "AuthenticAMD", False),
        (False, "AVX512", "AuthenticAMD", False),  # ARM, or another library in MKL's place
    ],
)
def test_which_processors(monkeypatch, tmp_path, mkl, capability, maker, faster):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    monkeypatch.setattr(known_processor, "Path", lambda _: tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert is_onednn_faster() is faster


@pytest.mark.parametrize(("processor", "faster"), [("AMD64 Family 25, AuthenticAMD", True), ("", False)])
def test_where_there_is_no_list_of_processors(monkeypatch, tmp_path, processor, faster):
    monkeypatch.setattr(known_processor, "Path", lambda _: tmp_path / "none")
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert is_onednn_faster() is faster


def _another_signature(input, weight):
    raise TypeError("no bias")


@pytest.mark.parametrize(
    "product",
    [_another_signature, lambda input, weight, bias: F.linear(input, weight), lambda *_: torch.zeros(2, 3, 4)],
)
def test_an_operator_that_has_changed_is_not_used(monkeypatch, product):
    """The operator is not public: another signature or meaning of it must not pass."""
    monkeypatch.setattr(products, "is_intel", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert is_onednn_faster()
    is_onednn_faster.cache_clear()
    monkeypatch.setattr(products, "_multiply", product)
    assert not is_onednn_faster()


@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.parametrize("scale", [1.702, 1 / 1.702])
def test_a_scaled_product(monkeypatch, is_faster, scale):
    monkeypatch.setattr(products, "is_onednn_faster", lambda: is_faster)
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((7, 5), (3, 5), (3,))]
    double = [tensor.detach().double().requires_grad_() for tensor in tensors]
    gradient = torch.randn(7, 3)
    actual = results(lambda *args: apply_scaled_linear(*args, scale=scale), tensors, gradient)
    exact = results(lambda x, weight, bias: scale * (x @ weight.t()) + bias, double, gradient)
    for ours, expected in zip(actual, exact, strict=True):
        torch.testing.assert_close(ours, expected.float(), rtol=1e-5, atol=1e-5)
