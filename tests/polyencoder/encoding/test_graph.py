"""Graphs without torch: any batch gives what each sequence gives alone."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from polyencoder.encoding.graph import CALL_COST, CALL_TOKENS, Graph, group_for_calls

pytestmark = pytest.mark.slow


@pytest.fixture
def graph_of(tmp_path):
    """(names of inputs) -> a graph that sums the unmasked numbers of each."""

    def make(*names: str) -> Graph:
        nodes, outputs = [], []
        for name in names:
            mask = name.replace("ids", "mask")
            nodes.append(helper.make_node("Cast", [mask], [f"{name} real"], to=TensorProto.INT64))
            nodes.append(helper.make_node("Mul", [name, f"{name} real"], [f"{name} kept"]))
            nodes.append(helper.make_node("ReduceSum", [f"{name} kept", "axis"], [f"sum {name}"], keepdims=0))
            outputs.append(helper.make_tensor_value_info(f"sum {name}", TensorProto.INT64, ["batch"]))
        inputs = []
        for name in names:
            inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]))
            inputs.append(
                helper.make_tensor_value_info(name.replace("ids", "mask"), TensorProto.BOOL, ["batch", "length"])
            )
        axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
        model = helper.make_model(
            helper.make_graph(nodes, "sums", inputs, outputs, [axis]), opset_imports=[helper.make_opsetid("", 17)]
        )
        model.ir_version = 10
        onnx.save(model, tmp_path / "graph.onnx")
        return Graph(tmp_path / "graph.onnx", pad_id=9, threads=1)

    return make


def test_outputs_are_in_the_order_of_the_sequences(graph_of):
    sequences = [[1] * (7 * row % 40) for row in range(200)]  # among them empty ones
    sums = graph_of("ids")(sequences)
    assert sums["sum ids"].tolist() == [len(ids) for ids in sequences]


@given(st.lists(st.one_of(st.integers(0, 130), st.just(CALL_TOKENS + 1)), max_size=80))
def test_calls_have_little_padding_and_few_tokens(lengths):
    calls = group_for_calls(lengths)
    assert sorted(i for rows in calls for i in rows) == [*range(len(lengths))]
    sizes = [len(rows) * max(lengths[i] for i in rows) for rows in calls]
    assert all(size <= CALL_TOKENS or len(rows) == 1 for size, rows in zip(sizes, calls, strict=True))
    assert sum(sizes) <= sum(lengths) + CALL_COST * len(set(lengths))  # that of a call for each length


def test_both_texts_of_a_context(graph_of):
    graph = graph_of("ids", "extra_ids")
    assert graph.takes_both_texts
    graph.separator = 50
    sums = graph([[1, 2, 50, 3, 4], [5], [50, 6]])
    assert (sums["sum ids"].tolist(), sums["sum extra_ids"].tolist()) == ([3, 5, 0], [7, 0, 6])
