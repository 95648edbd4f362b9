"""Whatever goes through a backbone together, each family of encoders gives what transformers' own model gives."""

from __future__ import annotations

import copy
import logging
import pickle

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModel

from polyencoder.modeling import attention
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.packing import Ragged, _build_ragged
from polyencoder.text.tokens import pad
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

SIZES = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
BERT = SIZES | {
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,  # tokens that see others than they should give other outputs
}
TOKENS = {"pad": 0, "bos": 2, "cls": 2, "eos": 3, "sep": 3}
ROBERTA = BERT | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**BERT),
    "roberta": lambda: transformers.RobertaConfig(**ROBERTA),
    "xlm-roberta": lambda: transformers.XLMRobertaConfig(**ROBERTA),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=64,
        dim=16,
        n_layers=3,
        n_heads=2,
        hidden_dim=32,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.3,
    ),
    "electra": lambda: transformers.ElectraConfig(**BERT, embedding_size=8),
    "camembert": lambda: transformers.CamembertConfig(**ROBERTA),
    "albert": lambda: transformers.AlbertConfig(**BERT, embedding_size=8, classifier_dropout_prob=0.0),
    "layoutlm": lambda: transformers.LayoutLMConfig(**BERT),
    "squeezebert": lambda: transformers.SqueezeBertConfig(
        **BERT,
        embedding_size=16,
        **{f"{name}_groups": 2 for name in ("q", "k", "v", "post_attention", "intermediate", "output")},
    ),
    "mpnet": lambda: transformers.MPNetConfig(**BERT, pad_token_id=1),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES,
        max_position_embeddings=64,
        local_attention=8,
        global_attn_every_n_layers=2,
        initializer_range=0.3,
        initializer_cutoff_factor=3.0,
        **{f"{name}_token_id": number for name, number in TOKENS.items()},
    ),
}
LENGTHS = [9, 2, 1, 30, 3, 29, 4, 17]
OWN_ATTENTION = {"layoutlm", "squeezebert"}  # computed in their layers
OUR_LAYERS = {"mpnet"}  # packed whichever implementation they were loaded with
LIKE_ROBERTA = {"camembert", "xlm-roberta"}  # of the same layers
TRANSFORMERS = tuple(int(part) for part in transformers.__version__.split(".")[:2])
NO_SDPA = {"mpnet", "squeezebert"} | (set() if TRANSFORMERS >= (5, 0) else {"electra"})


def model_of(family, implementation):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModel.from_config(CONFIGS[family](), attn_implementation=implementation)


def batch_of(family):
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(5, 64, (length,), generator=generator).tolist() for length in LENGTHS]
    segments = [[i % 2 for i in range(length)] for length in LENGTHS] if family in ("bert", "electra") else None
    return pad(sequences, pad_id=CONFIGS[family]().pad_token_id or 0, segments=segments)


def loss_of(outputs):
    """A loss of outputs [tokens, dim], in which each number has another weight."""
    rows, columns = (torch.linspace(1, 2, size, dtype=outputs.dtype) for size in outputs.shape)
    return ((outputs * (columns - 1.4)).sum(1).square() * rows).mean()


def gradients(loss, model):
    named = {name: p for name, p in model.named_parameters() if "pooler" not in name}
    tensors = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return dict(zip(named, tensors, strict=True))


@pytest.fixture
def reference():
    """(family) -> outputs and gradients of transformers' own class, eager, in float64, each sequence by itself."""

    def compute(family):
        model, tokens = model_of(family, "eager").double(), batch_of(family)
        outputs = []
        for row, length in enumerate(LENGTHS):
            segments = {} if tokens.segments is None else {"token_type_ids": tokens.segments[row : row + 1, :length]}
            outputs.append(model(input_ids=tokens.ids[row : row + 1, :length], **segments).last_hidden_state[0])
        together = torch.cat(outputs)
        return together.detach(), gradients(loss_of(together), model)

    return compute


def check(backbone, family, reference):
    """Learning and inference both equal the reference."""
    tokens = batch_of(family)
    expected, expected_gradients = reference(family)
    outputs = backbone.train()(tokens)[tokens.mask]
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=2e-5)
    actual = gradients(loss_of(outputs), backbone.model)
    assert actual.keys() == expected_gradients.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected_gradients.values() if gradient is not None)
    for name, gradient in expected_gradients.items():
        if gradient is not None:
            torch.testing.assert_close(actual[name].double(), gradient, rtol=1e-3, atol=1e-5 * largest, msg=name)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            outputs = backbone.eval()(tokens)[tokens.mask]
            first = backbone(tokens, first_only=True)
        torch.testing.assert_close(outputs.double(), expected, rtol=1e-4, atol=2e-5)
        assert first.shape == (len(LENGTHS), 1, 16)
        starts = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)
        torch.testing.assert_close(first[:, 0].double(), expected[starts], rtol=1e-4, atol=2e-5)


@mostly_long("implementation", [None, "sdpa", "eager"], quick=1)
@mostly_long("family", sorted(CONFIGS, key=lambda name: name in LIKE_ROBERTA), quick=len(CONFIGS) - 2)
def test_learning_and_inference_are_those_of_the_padded_model(reference, family, implementation):
    if implementation == "sdpa" and family in NO_SDPA:
        with pytest.raises(ValueError, match="does not support"):
            model_of(family, implementation)
        return
    check(Backbone(model_of(family, implementation)), family, reference)


@pytest.mark.parametrize("family", CONFIGS)
def test_which_run_packed_and_that_the_others_say_so_once(caplog, family):
    for implementation in (None, "eager"):
        caplog.clear()
        backbone = Backbone(model_of(family, implementation))
        with caplog.at_level(logging.WARNING, logger="polyencoder"):
            for _ in range(2):
                backbone(batch_of(family))
        messages = [record.getMessage() for record in caplog.records if record.name.startswith("polyencoder")]
        if TRANSFORMERS >= (5, 10):
            assert backbone.packs == (family in OUR_LAYERS or (family not in OWN_ATTENTION and implementation is None))
        assert len(messages) == (not backbone.packs)
        assert all(line.startswith(f"a {family} encoder runs padded: ") for line in messages)


@pytest.mark.skipif(TRANSFORMERS < (5, 10), reason="not all families run packed before transformers 5.10")
@mostly_long("family", sorted(CONFIGS.keys() - OWN_ATTENTION), quick=5)
def test_a_row_without_padding_as_on_a_gpu(monkeypatch, reference, family):
    """The way of a GPU without a kernel of variable length, for which a CPU will do."""
    backbone = Backbone(model_of(family, None))
    assert backbone.packs
    monkeypatch.setattr("polyencoder.modeling.backbone.pack", lambda mask, training=True: _build_ragged(mask))
    seen = []
    attend = Ragged.attend
    monkeypatch.setattr(Ragged, "attend", lambda self, *a, **o: seen.append(self) or attend(self, *a, **o))
    check(backbone, family, reference)
    assert len(seen) == 3 * 5  # layers, of the one time that it learns and the four that it does not


@pytest.mark.skipif(TRANSFORMERS < (5, 10), reason="not all families run packed before transformers 5.10")
@mostly_long("family", ["bert", "roberta", "xlm-roberta", "electra", "camembert"], quick=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_layer_computes_no_more_than_is_asked_for(monkeypatch, family, dtype):
    monkeypatch.setattr("polyencoder.modeling.backbone.ROW", 20)
    backbone = Backbone(model_of(family, None)).eval()
    names = list(backbone.state_dict())
    if dtype != torch.float32:
        backbone.cast_weights(dtype)
    assert backbone.packs
    assert list(backbone.state_dict()) == names
    tokens, fed = batch_of(family), []
    for encoder in (backbone, copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):  # noqa: S301
        last = encoder.get_layers()[-1]
        last.intermediate.register_forward_hook(lambda module, inputs, out: fed.append(out.shape[1]))
        with torch.no_grad():
            first = encoder(tokens, first_only=True)
            assert sum(fed) == len(LENGTHS)
            fed.clear()
            torch.testing.assert_close(
                first, encoder(tokens)[:, :1], rtol=1e-4 if dtype == torch.float32 else 0.1, atol=0.05
            )
            assert sum(fed) >= sum(LENGTHS)
        fed.clear()
        if dtype == torch.float32:  # as ever: random numbers of dropout are drawn for all tokens
            assert encoder.train()(tokens, first_only=True).requires_grad
            assert sum(fed) >= sum(LENGTHS)
        fed.clear()


@pytest.mark.skipif(TRANSFORMERS < (5, 10), reason="not all families run packed before transformers 5.10")
def test_a_last_layer_that_computes_something_else_stays(reference):
    backbone = Backbone(model_of("bert", None))
    last = backbone.get_layers()[-1]

    class Doubled(type(last)):
        def forward(self, *args, **kwargs):
            return 2 * super().forward(*args, **kwargs)

    last.__class__ = Doubled
    assert backbone.packs
    assert backbone.get_layers()[-1] is last
    tokens = batch_of("bert")
    with torch.no_grad():
        torch.testing.assert_close(backbone(tokens, first_only=True), backbone(tokens)[:, :1])


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_implementation_that_is_chosen_later_counts(reference, family):
    backbone = Backbone(model_of(family, None))
    backbone(batch_of(family))
    if backbone.packs:
        backbone.model.set_attn_implementation("eager")
        assert not backbone.packs
        check(backbone, family, reference)


def test_a_model_whose_layers_see_across_tokens_runs_padded(caplog):
    """The trial finds what no list of families says."""

    class Neighbours(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, hidden, *args, **kwargs):
            return self.layer(hidden + 0.1 * hidden.roll(1, dims=1), *args, **kwargs)

    backbone = Backbone(model_of("bert", None))
    layers = backbone.get_layers()
    layers[0] = Neighbours(layers[0])
    with caplog.at_level(logging.WARNING, logger="polyencoder"):
        assert not backbone.packs
    assert "runs padded" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_leaves_no_trace(dtype):
    backbone = Backbone(model_of("bert", None)).to(dtype).train()
    backbone.get_layers()[0].eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    modes = [module.training for module in backbone.modules()]
    state = torch.get_rng_state()
    assert backbone.packs == (TRANSFORMERS >= (5, 0))
    assert torch.equal(torch.get_rng_state(), state)
    assert modes == [module.training for module in backbone.modules()]
    after = backbone.state_dict()
    assert all(torch.equal(after[name], value) and after[name].dtype == dtype for name, value in before.items())


def test_other_models_of_this_process_are_left_alone():
    """Neither a model that did not ask for our implementation nor the model of a backbone is changed."""
    original = model_of("bert", None)
    before = str(original), original.config.to_dict(), original.config._attn_implementation
    backbone = Backbone(original)
    assert (str(original), original.config.to_dict(), original.config._attn_implementation) == before
    named = dict(original.named_parameters())
    assert all(parameter is named[name] for name, parameter in backbone.model.named_parameters())
    assert model_of("bert", None).config._attn_implementation != attention.NAME
    assert attention.NAME not in model_of("bert", None).config.to_json_string()
    assert attention.NAME not in Backbone(model_of("bert", None)).model.config.to_json_string()
