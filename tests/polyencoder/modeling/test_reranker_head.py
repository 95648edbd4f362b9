"""A cross-encoder with the head of a trained reranker has the scores that transformers gives for the same pairs."""

from __future__ import annotations

import functools
import json
import re
import shutil
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from polyencoder import CheckpointError, ConfigError, Ranker
from polyencoder.modeling.encoder_files import find_longest_input
from polyencoder.modeling.reranker_head import read_classifier, read_reranker_head
from polyencoder.settings.train import TrainSettings
from polyencoder.training.start import build_starting_ranker, build_untrained_ranker
from tests.encoders import SENTENCES
from tests.parameters import mostly_long

FAMILIES = ["albert", "bert", "camembert", "distilbert", "deberta-v2", "electra", "modernbert", "mpnet"]
FAMILIES += ["roberta", "xlm-roberta"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})

CONTEXTS = ["how are you ?", "i am fine , thank you .", "pets"]
CANDIDATES = ["i like to ski in the mountains .", "dogs", " ".join(SENTENCES[:4])]

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@functools.cache
def oracle(folder):
    return AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


@functools.cache
def loaded(folder) -> Ranker:
    return Ranker.load(folder, device="cpu")


def by_transformers(folder, contexts, candidates) -> torch.Tensor:
    """The logits [contexts, candidates] of each pair by itself."""
    model, tokenizer = oracle(folder)
    segments = int(getattr(model.config, "type_vocab_size", 0) or 0) > 1  # where the model has them
    rows = []
    for context in contexts:
        pairs = (tokenizer(context, text, return_tensors="pt", return_token_type_ids=segments) for text in candidates)
        with torch.no_grad():
            rows.append(torch.cat([model(**pair).logits[0] for pair in pairs]))
    return torch.stack(rows)


@pytest.fixture
def copy(make_reranker, tmp_path):
    """A reranker's folder that a test may change."""
    return shutil.copytree(make_reranker("electra"), tmp_path / "copy")


@pytest.mark.slow
@mostly_long("family", FAMILIES, quick=4)
def test_scores_of_each_family(make_reranker, tmp_path, family):
    """Loaded without saying what it is, saved in our format, started from, and as the start of another."""
    folder = make_reranker(family)
    expected = by_transformers(folder, CONTEXTS, CANDIDATES)
    assert expected.std() > 0.1
    ranker = loaded(folder)
    assert ranker.model.config.architecture == "cross"
    torch.testing.assert_close(torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES)), expected, **CLOSE)
    assert [hit.index for hit in ranker.rank(CONTEXTS[1], CANDIDATES)] == expected[1].argsort(descending=True).tolist()
    ranker.save_pretrained(tmp_path)
    for again in (
        Ranker.load(tmp_path, device="cpu"),
        Ranker.from_backbone(folder, "cross", device="cpu"),
        Ranker.from_backbone(tmp_path, "cross", device="cpu"),
    ):
        torch.testing.assert_close(torch.as_tensor(again.score(CONTEXTS, CANDIDATES)), expected, **CLOSE)
        assert again.model.config == ranker.model.config
    scores = CrossEncoder(str(tmp_path), device="cpu").predict([*product(CONTEXTS, CANDIDATES)], convert_to_tensor=True)
    torch.testing.assert_close(scores.view_as(expected), expected, **CLOSE)
    bi = Ranker.from_backbone(tmp_path, "bi", device="cpu").model
    assert (bi.config.dense, bi.dim) == ((), 16)  # a reranker's layer maps no vectors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("bert", {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}),  # Multilingual-MiniLM: XLM-R's pairs
        ("bert", {"pooler_hidden_act": "gelu", "classifier_activation": "gelu"}),  # other families' keys
        ("electra", {"pooler_hidden_act": "tanh", "classifier_activation": "tanh"}),
        ("deberta-v2", {"pooler_hidden_act": "tanh"}),
        ("modernbert", {"classifier_activation": "relu", "classifier_pooling": "cls", "classifier_bias": True}),
        ("modernbert", {"norm_bias": True, "norm_eps": 0.1}),
    ],
)
def test_scores_of_what_configurations_say(make_reranker, family, fields):
    folder = make_reranker(family, **fields)
    expected = by_transformers(folder, CONTEXTS, CANDIDATES)
    torch.testing.assert_close(torch.as_tensor(loaded(folder).score(CONTEXTS, CANDIDATES)), expected, **CLOSE)


@pytest.mark.parametrize("source", ["tokenizer_config.json", "tokenizer.json"])
def test_a_tokenizer_that_gives_no_segments(make_reranker, tmp_path, edit_json, source):
    """A BERT, which has two, then reads all as the first."""
    folder = shutil.copytree(make_reranker("bert"), tmp_path / "copy")
    if source == "tokenizer.json":
        written = (folder / source).read_text()
        (folder / source).write_text(re.sub(r'"type_id": *1', '"type_id":0', written))
    else:
        edit_json(folder / source, model_input_names=["input_ids", "attention_mask"])
    model, tokenizer = oracle(folder)
    pairs = tokenizer(CONTEXTS, CANDIDATES, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**pairs).logits[:, 0]
    assert not torch.allclose(
        expected, by_transformers(make_reranker("bert"), CONTEXTS, CANDIDATES).diagonal(), **CLOSE
    )
    torch.testing.assert_close(
        torch.as_tensor(loaded(folder).score(CONTEXTS, CANDIDATES)).diagonal(), expected, **CLOSE
    )


@pytest.mark.slow
@settings(max_examples=12)
@given(
    contexts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join), min_size=1, max_size=3),
    candidates=st.lists(
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=44).map(" ".join), min_size=1, max_size=4
    ),
)
@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_any_texts_up_to_the_maximum(make_reranker, family, contexts, candidates):
    folder = make_reranker(family)
    expected = by_transformers(folder, contexts, candidates)
    torch.testing.assert_close(torch.as_tensor(loaded(folder).score(contexts, candidates)), expected, **CLOSE)


@mostly_long(
    ("family", "fields", "lengths", "expected"),
    [
        ("bert", {}, {}, (16, 64, 64)),
        ("roberta", {}, {}, (16, 64, 64)),  # its two positions more are none
        ("bert", {"max_tokens": 40}, {}, (10, 40, 40)),
        ("bert", {"max_tokens": 10**30}, {}, (16, 64, 64)),
        ("bert", {}, {"text_truncate": 40}, (40, 64, 64)),
        ("bert", {}, {"label_truncate": 40}, (16, 40, 64)),
    ],
    quick=3,
)
def test_lengths_are_those_that_it_reads(make_reranker, tmp_path, family, fields, lengths, expected):
    ranker = Ranker.from_backbone(make_reranker(family, **fields), "cross", device="cpu", text=lengths)
    ranker.save_pretrained(tmp_path)
    started = Ranker.from_backbone(tmp_path, "cross", device="cpu")  # it has the same lengths
    for reranker in (ranker, started):
        text = reranker.text.config
        assert (text.text_truncate, text.label_truncate, reranker.model.config.pair_truncate) == expected


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
def test_a_passage_has_all_that_the_question_leaves(make_reranker, family):
    """The passage's end is lost, as transformers cuts the longer text, whatever the question's length."""
    folder, passage = make_reranker(family), " ".join(SENTENCES * 3)
    model, tokenizer = oracle(folder)
    for question in ("pets", "i am fine , thank you"):
        pair = tokenizer(question, passage, truncation=True, max_length=64, return_tensors="pt")
        assert pair.input_ids.shape == (1, 64)
        with torch.no_grad():
            expected = model(**pair).logits
        torch.testing.assert_close(torch.as_tensor(loaded(folder).score([question], [passage])), expected, **CLOSE)
        cut = torch.as_tensor(loaded(folder).score([question], [passage + " more of it"]))  # behind the end
        torch.testing.assert_close(cut, expected, **CLOSE)


def test_a_question_as_long_as_the_pair(make_reranker):
    with pytest.raises(
        ConfigError, match="contexts may have 62 of the 64 tokens of a pair, which leaves none"
    ) as error:
        Ranker.from_backbone(make_reranker("bert"), "cross", device="cpu", text={"text_truncate": 62})
    assert error.value.argument == "text_truncate"


@pytest.mark.parametrize("longest", [..., None, "512"])
def test_lengths_where_nothing_limits_them(copy, edit_json, longest):
    edit_json(copy / "tokenizer_config.json", model_max_length=longest)
    assert find_longest_input(copy, {"model_type": "deberta-v2"}) == 512


@pytest.mark.slow
def test_training_begins_with_its_scores(make_reranker):
    """Training is compared with these scores; a new cross-encoder is random, and compared with a bi-encoder."""
    folder = make_reranker("electra")
    options = TrainSettings(backbone=str(folder), architecture="cross", train="any.jsonl", out="any", device="cpu")
    for ranker in (build_starting_ranker(options), build_untrained_ranker(options)):
        torch.testing.assert_close(
            torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES)), by_transformers(folder, CONTEXTS, CANDIDATES), **CLOSE
        )
    ranker.model.train()
    tokens = ranker.text.batch_contexts(CONTEXTS), ranker.text.batch_candidates(CANDIDATES)
    ranker.model(*tokens).sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in ranker.model.dense.parameters())


def test_other_architectures_take_its_encoder_alone(make_reranker, caplog):
    for architecture in ("bi", "poly", "late"):
        caplog.clear()
        model = Ranker.from_backbone(make_reranker("bert"), architecture, device="cpu").model
        assert not model.config.dense
        assert "not its classifier (BertForSequenceClassification): train before you use it" in caplog.text


def test_a_sentence_encoder_is_none_whatever_its_configuration_says(make_reranker, tmp_path):
    folder = shutil.copytree(make_reranker("bert"), tmp_path / "encoder")
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean", "embedding_dimension": 16}))
    assert Ranker.load(folder, device="cpu").model.config.architecture == "bi"
    assert Ranker.from_backbone(folder, "cross", device="cpu").model.config.dense == ()


# ---- what cannot be one


@pytest.mark.parametrize("load", [Ranker.load, lambda folder: Ranker.from_backbone(folder, "cross")])
def test_classifiers_of_several_labels(make_reranker, tmp_path, load):
    folder = shutil.copytree(make_reranker("bert", num_labels=3), tmp_path / "copy")
    message = f"{folder}: BertForSequenceClassification cannot be a cross-encoder: it has 3 labels, and a score is one "
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        load(folder)
    assert error.value.argument == "backbone"
    assert len(str(error.value).splitlines()) == 1
    AutoModel.from_pretrained(folder).save_pretrained(folder)  # as the message advises
    assert load(folder).model.config.dense == ()


def test_families_and_activations_that_are_not_known(copy, edit_json):
    edit_json(copy / "config.json", model_type="modernbert", classifier_activation="gelu_new")
    with pytest.raises(ConfigError, match="its activation is gelu_new, not one of identity, tanh, "):
        read_reranker_head(copy)
    edit_json(copy / "config.json", model_type="squeezebert")
    with pytest.raises(ConfigError, match="its family is squeezebert, not one of albert, bert, "):
        read_reranker_head(copy)


def test_files_that_do_not_hold_it(copy):
    path = copy / "model.safetensors"
    weights = load_file(path)
    save_file({name: tensor for name, tensor in weights.items() if "out_proj" not in name}, path)
    with pytest.raises(ConfigError, match="its model.safetensors has no classifier.out_proj.weight"):
        read_reranker_head(copy)
    save_file({**weights, "classifier.out_proj.bias": torch.tensor([torch.inf])}, path)
    with pytest.raises(CheckpointError, match="linear.bias are nan or infinite"):
        read_reranker_head(copy)
    save_file({**weights, "classifier.dense.weight": torch.zeros(16, 8)}, path)
    with pytest.raises(ConfigError, match=r"its classifier does not fit its encoder \(.*dense.0.weight"):
        Ranker.load(copy)
    path.write_bytes(b"no")
    with pytest.raises(ConfigError, match="damaged or not a safetensors file"):
        read_reranker_head(copy)
    path.unlink()
    with pytest.raises(ConfigError, match=r"read from one model.safetensors, .* AutoModelForSequenceClassification"):
        read_reranker_head(copy)


def test_pairs_that_rankers_do_not_have(copy, edit_json):
    edit_json(copy / "tokenizer.json", post_processor=None)
    with pytest.raises(ConfigError, match=f"^{copy}: its tokenizer joins two texts as a .*, which ranke") as error:
        Ranker.load(copy)
    assert error.value.argument == "backbone"


def test_what_is_no_classifier(backbone_folder):
    for name in (backbone_folder("bert"), "nobody/has-this"):
        assert read_classifier(name) is read_reranker_head(name) is None
