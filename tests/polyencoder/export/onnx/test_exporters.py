"""Each family of encoders as a graph, by torch's current exporter and by the older one."""

from __future__ import annotations

import logging

import onnx
import pytest
import torch
import transformers
from transformers import AutoModel

from polyencoder import ConfigError
from polyencoder.encoding.graph import Graph
from polyencoder.export.onnx import export_onnx, exporters
from polyencoder.export.onnx.exporters import write_graph
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.export_steps import Step
from polyencoder.text.tokens import TokenBatch, pad
from tests.parameters import mostly_long
from tests.polyencoder.export.onnx.conftest import BY_CURRENT_EXPORTER, N_LAYERS, assert_close, load_graphs

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BERT = SIZES | {"max_position_embeddings": 64, "initializer_range": 0.3}
ROBERTA = BERT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
TOKENS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
DISTILBERT = {"vocab_size": 64, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "initializer_range": 0.3}
MODERNBERT = {"local_attention": 8, "global_attn_every_n_layers": 2, "max_position_embeddings": 64, **TOKENS}
FAMILIES = {
    "bert": lambda: transformers.BertConfig(**BERT),
    "roberta": lambda: transformers.RobertaConfig(**ROBERTA),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**ROBERTA),
    "distilbert": lambda: transformers.DistilBertConfig(**DISTILBERT, max_position_embeddings=64),
    "electra": lambda: transformers.ElectraConfig(**BERT, embedding_size=8),
    "camembert": lambda: transformers.CamembertConfig(**ROBERTA),
    "mpnet": lambda: transformers.MPNetConfig(**BERT | {"pad_token_id": 1}),
    "modernbert": lambda: transformers.ModernBertConfig(**SIZES | {"num_hidden_layers": 2}, **MODERNBERT),
}
LENGTHS = [[30, 3], [1], [40], [9, 2, 1, 30, 3, 29, 4, 17]]  # batches; the first is the exporter's


class Outputs(Step):
    """-> outputs of the encoder [batch, length, dim], 0 at padding."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.backbones = [backbone]

    def list_axes(self, name):
        return ("batch", "length")

    def forward(self, ids, mask):
        return (self.model(TokenBatch(ids, mask)) * mask.unsqueeze(-1),)


def encoder(family: str, implementation: str | None = None, *, n_layers: int | None = None) -> Backbone:
    config = FAMILIES[family]()
    config.num_hidden_layers = config.num_hidden_layers if n_layers is None else n_layers
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Backbone(AutoModel.from_config(config, attn_implementation=implementation)).eval()


def batch(lengths: list[int]) -> TokenBatch:
    generator = torch.Generator().manual_seed(len(lengths))
    return pad([torch.randint(5, 64, (n,), generator=generator).tolist() for n in lengths], pad_id=1)


def check_graph(backbone: Backbone, path) -> None:
    """What torch gives, for any batch."""
    graph = Graph(path)
    for lengths in LENGTHS:
        tokens = batch(lengths)
        with torch.no_grad():
            (expected,) = Outputs(backbone)(tokens.ids, tokens.mask)
        (outputs,) = graph(tokens.list_sequences()).values()
        assert_close(outputs, expected)


def list_messages(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("polyencoder.export")]


def write(backbone: Backbone, path) -> None:
    tokens = batch(LENGTHS[0])
    write_graph(exporters.prepare_for_graphs(Outputs(backbone)), (tokens.ids, tokens.mask), path)


# the other families share the code of roberta or bert, and the rankers of conftest.py are of bert
OTHERS = sorted(FAMILIES.keys() - {"xlm-roberta", "camembert", "bert", "electra"})


@pytest.mark.long
@pytest.mark.parametrize("family", OTHERS)
def test_families(family, tmp_path, by_current_exporter, caplog):
    backbone = encoder(family)
    write(backbone, tmp_path / "graph.onnx")
    check_graph(backbone, tmp_path / "graph.onnx")
    assert not list_messages(caplog)  # none of them is traced instead
    check_axes_and_paths(tmp_path / "graph.onnx")


def check_axes_and_paths(path) -> None:
    """The graph takes any batch and length, and names nothing of this machine."""
    graph = onnx.load(path).graph
    for graph_input in graph.input:
        assert [axis.dim_param for axis in graph_input.type.tensor_type.shape.dim] == ["batch", "length"]
    assert not any(node.metadata_props for node in graph.node)
    assert b"/projects/" not in path.read_bytes()


def opset(path) -> int:
    return next(each.version for each in onnx.load(path).opset_import if not each.domain)


@pytest.mark.skipif(not exporters.IS_CURRENT, reason="this torch's exporter traces")
@pytest.mark.parametrize("kind", BY_CURRENT_EXPORTER)
def test_rankers_are_not_traced_instead(exported, kind):
    graphs = [*exported(kind)[1].glob("*.onnx")]
    assert [opset(graph) for graph in graphs] == [exporters.OPSET] * 2
    for graph in graphs:
        check_axes_and_paths(graph)


@pytest.mark.long
@pytest.mark.skipif(not exporters.IS_CURRENT, reason="this torch's exporter traces")
@pytest.mark.parametrize("kind", N_LAYERS)
def test_other_rankers(make_exportable, sentences, tmp_path, by_current_exporter, trace_candidates, monkeypatch, kind):
    trace_candidates(monkeypatch)
    ranker = make_exportable(kind)
    export_onnx(ranker, tmp_path)
    assert opset(tmp_path / ("scorer.onnx" if kind == "cross" else "context.onnx")) == exporters.OPSET
    contexts = [["hi"], sentences[:3], sentences]
    assert_close(load_graphs(tmp_path).score(contexts, sentences), ranker.score(contexts, sentences))


@mostly_long("implementation", [None, "eager"], quick=1)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_traced(family, implementation, tmp_path):
    backbone = encoder(family, implementation)
    write(backbone, tmp_path / "graph.onnx")
    check_graph(backbone, tmp_path / "graph.onnx")


def test_attention_is_few_operators_and_the_model_keeps_its_own(tmp_path):
    backbone = encoder("bert")
    before = backbone.model.config._attn_implementation
    copy = exporters.prepare_for_graphs(Outputs(backbone)).model
    assert copy.model.config._attn_implementation == exporters.NAME
    assert backbone.model.config._attn_implementation == before == "polyencoder"
    pairs = zip(backbone.parameters(), copy.parameters(), strict=True)
    assert all(parameter is copied for parameter, copied in pairs)  # no second copy of the weights
    write(backbone, tmp_path / "graph.onnx")
    operators = {node.op_type for node in onnx.load(tmp_path / "graph.onnx").graph.node}
    assert "Softmax" in operators
    assert not operators & {"IsNaN", "Sqrt"}


class Unfollowed(Outputs):
    """What depends on a value, which torch.export does not follow."""

    def forward(self, ids, mask):
        outputs = super().forward(ids, mask)
        return (outputs[0] * 2,) if ids.sum() > 0 else outputs


@pytest.mark.long
@pytest.mark.skipif(not exporters.IS_CURRENT, reason="this torch's exporter traces")
def test_what_the_exporter_cannot_follow_is_traced_and_the_log_says_so(tmp_path, by_current_exporter, caplog):
    tokens = batch(LENGTHS[0])
    with caplog.at_level(logging.WARNING, logger="polyencoder"):
        step = Unfollowed(encoder("bert", n_layers=0)).eval()
        write_graph(step, (tokens.ids, tokens.mask), tmp_path / "graph.onnx")
    (message,) = list_messages(caplog)
    assert message.startswith("torch's ONNX exporter cannot follow this model, which is traced instead")
    with torch.no_grad():
        (expected,) = step(tokens.ids, tokens.mask)
    (outputs,) = Graph(tmp_path / "graph.onnx")(tokens.list_sequences()).values()
    assert_close(outputs, expected)


@pytest.mark.skipif(not exporters.IS_CURRENT, reason="this torch's exporter needs nothing else")
def test_without_onnxscript(tmp_path, by_current_exporter, block_import):
    block_import("onnxscript")
    with pytest.raises(ConfigError, match=r"`onnxscript` is not installed: pip install '.*\[onnx\]'"):
        write(encoder("bert"), tmp_path / "graph.onnx")
