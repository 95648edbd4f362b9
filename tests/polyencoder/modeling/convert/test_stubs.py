"""The oracle: PolyAI's published test modules, whose weights in our parts give their vectors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from polyencoder.modeling.build import build_model
from polyencoder.modeling.convert import ConvertConfig
from polyencoder.modeling.convert.config import convert_ranker, convert_text
from polyencoder.modeling.convert.model import ConveRT
from polyencoder.modeling.convert.rows import PackedRows
from polyencoder.text import TextEncoder
from polyencoder.text.subwords.tokenizer import SubwordTokenizer

STUB = ConvertConfig(
    vocab_size=119,
    hidden_size=3,
    attention_limits=(),
    positions=(11,),
    reduction_heads=1,
    reduction_size=3,
    head_sizes=(2, 3),
    output_size=5,
    activation="relu",
    scale_batches=0,
)


def load(model: ConveRT, weights: dict[str, list]) -> None:
    """The graph's weights under our names; TensorFlow's matrices are [input, output]."""

    def matrix(name: str) -> Tensor:
        return torch.tensor(weights[name]).t()

    def norm(module: torch.nn.LayerNorm, name: str) -> None:
        module.weight.copy_(torch.tensor(weights[f"{name}/LayerNorm/gamma"]))
        module.bias.copy_(torch.tensor(weights[f"{name}/LayerNorm/beta"]))

    embeddings, reduction = model.encoder.embeddings, model.encoder.reduction
    embeddings.words.weight.copy_(
        torch.tensor(weights["embedding_matrices/subword_embeddings"])[:119]
    )  # one is padding
    embeddings.positions[0].copy_(torch.tensor(weights["embed_nl/positional_embeddings/0"]))
    norm(embeddings.norm, "embed_nl/layer_norm_input")
    head = "embed_nl/self_attention_head_1"
    reduction.queries_keys.weight.copy_(torch.cat([matrix(f"{head}/query_weights"), matrix(f"{head}/keys_weights")]))
    model.skip.weight.copy_(matrix("skip_connection/projection/weights"))
    heads = {"encode_context_feature": model.context_head, "encode_nl_feature": model.response_head}
    if model.history is not None:
        heads["encode_extra_context_feature"] = model.history.head
        heads["encode_combined_context"] = model.history.combined_head
        model.history.combined_skip.weight.copy_(matrix("skip_connection/combined_context/projection/weights"))
    for name, module in heads.items():
        norm(module.input_norm, f"{name}/layer_norm_input")
        for i, (layer, layer_norm) in enumerate(zip(module.layers, module.norms, strict=True)):
            layer.weight.copy_(matrix(f"{name}/layer_{i}/hidden_{i}/weights"))
            norm(layer_norm, f"{name}/layer_{i}/layer_norm")
        module.output.weight.copy_(matrix(f"{name}/final/weights"))
        norm(module.output_norm, f"{name}/layer_norm")


@pytest.fixture
def text(stubs) -> TextEncoder:
    tokenizer = SubwordTokenizer(stubs["vocabulary"], buckets=stubs["buckets"])
    return TextEncoder(tokenizer, replace(convert_text(), text_truncate=100, label_truncate=100))


@pytest.fixture(params=["single", "multi"])
def module(request, stubs) -> dict:
    return stubs[request.param]


@torch.no_grad()
def test_vectors_are_the_graphs(stubs, module, text):
    model = build_model(convert_ranker(STUB, text.config)).eval()
    load(model, module["weights"])
    tokens = text.batch_contexts(stubs["texts"])
    candidates = text.batch_candidates(stubs["texts"])
    torch.testing.assert_close((tokens.ids, tokens.mask), (candidates.ids, candidates.mask))

    outputs = model.encoder.encode_tokens(tokens, PackedRows.from_mask(tokens.mask))
    expected = torch.tensor([vector for text in module["sequence"] for vector in text])
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model.encoder(tokens), torch.tensor(module["reduced"]), rtol=0, atol=1e-5)

    scale = 5**0.5  # of a model that has trained for long enough
    vectors = model.encode_context(tokens).vectors.squeeze(1) / scale
    torch.testing.assert_close(vectors, torch.tensor(module["context"]), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.encode_candidates(candidates), torch.tensor(module["response"]), rtol=0, atol=1e-5)


@torch.no_grad()
def test_contexts_with_a_history_are_the_graphs(stubs, text):
    module = stubs["multi"]
    layout = replace(convert_text(extra_contexts=10), text_truncate=100, label_truncate=100)
    model = build_model(convert_ranker(replace(STUB, multi_context=True), layout)).eval()
    load(model, module["weights"])
    separator = text.tokenizer.token_to_id("[EXTRA]")
    assert separator == model.sizes.separator_id
    extra = text.tokenizer.encode_texts(module["extra"])
    ids = [[*row, *([separator, *tail] if tail else [])] for row, tail in zip(stubs["ids"], extra, strict=True)]
    assert 3 < sum(map(bool, extra)) < len(ids)  # with and without a history

    reader = TextEncoder(text.tokenizer, layout)
    for turn, history, expected in zip(stubs["texts"], module["extra"], ids, strict=True):
        assert reader.tokenize_context([history, turn]) == expected or not turn.strip()  # a blank turn is none
    tokens = text.pad(ids)
    vectors = model.encode_context(tokens).vectors.squeeze(1) / 5**0.5
    torch.testing.assert_close(vectors, torch.tensor(module["combined"]), rtol=0, atol=1e-5)
    parts = model.split_objectives(model.encode_objectives(tokens))
    immediate, earlier = (parts[name].vectors.squeeze(1) / 5**0.5 for name in ("immediate", "extra"))
    torch.testing.assert_close(immediate, torch.tensor(module["context"]), rtol=0, atol=1e-5)
    torch.testing.assert_close((immediate + earlier) / 2, torch.tensor(module["mean"]), rtol=0, atol=1e-5)
