"""Encoders that sentence-transformers saved have its vectors, of short and of long texts; or they are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, Pooling, StaticEmbedding
from torch import nn

from polyencoder import ConfigError, Ranker
from polyencoder.errors import PolyencoderError
from polyencoder.modeling.sentence_encoder import read_prompts, read_sentence_encoder
from tests.parameters import mostly_long
from tests.polyencoder.modeling.test_oracle import FAMILIES, PROMPTS, tokenizer_of

LONG = "do you ski in winter ? i love snow , and hello to you . " * 12  # more tokens than there are positions
TEXTS = ["hello", "i love snow", "Hello World order 66", "no . " * 30 + "every winter i ski", LONG, LONG[3:]]


@pytest.fixture
def transformer(tmp_path):
    """(family, pieces=, **kwargs of Transformer) -> the module, of random weights; `pieces` pads with another id."""

    def make(family: str = "bert", *, pieces: bool = False, **options) -> Transformer:
        configure, kind = FAMILIES[family]
        config = configure()
        pad = config.pad_token_id or 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "encoder")
        tokenizer_of("pieces" if pieces else kind, pad=1 if pieces else pad).save_pretrained(tmp_path / "encoder")
        if config.pad_token_id == 1:  # as in their files: the first of 64 positions is the third
            options.setdefault("max_seq_length", 62)
        return Transformer(str(tmp_path / "encoder"), **options)

    return make


def with_lora(transformer: Transformer) -> Transformer:
    from peft import LoraConfig

    transformer.model.add_adapter(LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query", "value"]))
    for name, parameter in transformer.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return transformer


def static() -> StaticEmbedding:
    tokenizer = tokenizer_of("words", pad=0)
    return StaticEmbedding(tokenizer, torch.randn(len(tokenizer), 16, generator=torch.Generator().manual_seed(0)))


# name -> (modules of sentence-transformers, by the fixture; options of the model)
FOLDERS = {
    "max, dot product": (lambda t: [t(), Pooling(16, "max")], {"similarity_fn_name": "dot"}),
    "weighted mean": (lambda t: [t(), Pooling(16, "weightedmean"), Normalize()], {}),
    "last token": (lambda t: [t("roberta"), Pooling(16, "lasttoken"), Normalize()], {}),
    "paraphrase-multilingual-MiniLM": (lambda t: [t(pieces=True), Pooling(16)], {}),  # a BERT with XLM-R's tokenizer
    "two dense": (
        lambda t: [t(), Pooling(16), Dense(16, 24), Dense(24, 6, bias=False, activation_function=nn.GELU())],
        {"similarity_fn_name": "dot"},
    ),
    "dropout": (lambda t: [t(), Pooling(16), Dropout(0.5), Dense(16, 8), Dropout(0.5), Normalize()], {}),
    "prompts": (lambda t: [t("roberta"), Pooling(16), Normalize()], {"prompts": PROMPTS}),
    "mean": (lambda t: [t(), Pooling(16, "mean"), Normalize()], {}),
    "cls": (lambda t: [t(), Pooling(16, "cls")], {}),
    "dense": (lambda t: [t(), Pooling(16), Dense(16, 6), Normalize()], {}),
    "prompts of words": (lambda t: [t(), Pooling(16, "cls"), Normalize()], {"prompts": PROMPTS}),
    "prompts that are not pooled": (
        lambda t: [t(), Pooling(16, include_prompt=False), Normalize()],
        {"prompts": PROMPTS},
    ),
    "weighted prompts that are not pooled": (
        lambda t: [t("xlm-roberta"), Pooling(16, "weightedmean", include_prompt=False), Normalize()],
        {"prompts": PROMPTS},
    ),
    "default prompt": (
        lambda t: [t(), Pooling(16), Normalize()],
        {"prompts": {"sts": "snow : "}, "default_prompt_name": "sts"},
    ),
    "lower case": (lambda t: [t(do_lower_case=True), Pooling(16), Normalize()], {}),
    "lower case of bytes": (lambda t: [t("roberta", do_lower_case=True), Pooling(16), Normalize()], {}),
    "short": (lambda t: [t(max_seq_length=20), Pooling(16), Normalize()], {"prompts": PROMPTS}),
    "short, of bytes": (lambda t: [t("modernbert", max_seq_length=24), Pooling(16), Normalize()], {}),
    "lengths of both": (lambda t: [t(query_length=12, document_length=30), Pooling(16), Normalize()], {}),
    "distilbert": (lambda t: [t("distilbert"), Pooling(16), Normalize()], {}),
    "mpnet": (lambda t: [t("mpnet"), Pooling(16), Normalize()], {}),
    "static": (lambda t: [static()], {"similarity_fn_name": "dot"}),
    "static with prompts": (lambda t: [static(), Normalize()], {"prompts": PROMPTS}),
    "static and dense": (lambda t: [static(), Dense(16, 6), Normalize()], {}),
    "first dimensions": (lambda t: [t(), Pooling(16)], {"truncate_dim": 8}),
    "adapters": (lambda t: [with_lora(t()), Pooling(16), Normalize()], {}),
}


@pytest.fixture
def save(transformer, tmp_path):
    """(name of `FOLDERS`) -> sentence-transformers' model, and the folder that it wrote."""

    def make(name: str) -> tuple[SentenceTransformer, Path]:
        modules, options = FOLDERS[name]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            parts = modules(transformer)
        model = SentenceTransformer(modules=parts, device="cpu", **options).eval()
        model.save(str(tmp_path / "saved"))
        return SentenceTransformer(str(tmp_path / "saved"), device="cpu"), tmp_path / "saved"

    return make


def assert_same_vectors(ranker: Ranker, oracle: SentenceTransformer) -> None:
    config = ranker.model.config
    for kind, encode in (("context", oracle.encode_query), ("candidate", oracle.encode_document)):
        expected = encode(TEXTS, convert_to_tensor=True)
        if config.normalize:  # compared by cosine, as a module says, or their similarity
            expected = F.normalize(expected, dim=-1)
        vectors = torch.from_numpy(ranker.encode(TEXTS, kind=kind)) / config.output_scaling
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0, msg=lambda text, kind=kind: f"{kind}: {text}")


@pytest.mark.slow
@mostly_long("name", FOLDERS, quick=7)
def test_vectors(save, tmp_path, name):
    oracle, folder = save(name)
    ranker = Ranker.load(folder, device="cpu")
    assert_same_vectors(ranker, oracle)
    ranker.save_pretrained(tmp_path / "ours")
    assert_same_vectors(Ranker.load(tmp_path / "ours", device="cpu"), oracle)
    assert_same_vectors(ranker, SentenceTransformer(str(tmp_path / "ours"), device="cpu"))


def test_the_layout_of_earlier_versions(save, transformer):
    """The transformer in a folder of its own, a key for each pooling, lengths and case in its file."""
    oracle, folder = save("mean")
    inner = folder / "0_Transformer"
    inner.mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in ROOT_FILES]:
        path.rename(inner / path.name)
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    old = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(old))
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 18, "do_lower_case": true}')
    oracle = SentenceTransformer(str(folder), device="cpu")
    assert (oracle.max_seq_length, oracle[1].pooling_mode, oracle[0].do_lower_case) == (18, "cls", True)
    assert_same_vectors(Ranker.load(folder, device="cpu"), oracle)


ROOT_FILES = ("modules.json", "config_sentence_transformers.json", "README.md")


def test_a_tokenizer_without_special_tokens(save, edit_json):
    _, folder = save("mean")
    edit_json(folder / "tokenizer.json", post_processor=None)
    assert_same_vectors(Ranker.load(folder, device="cpu"), SentenceTransformer(str(folder), device="cpu"))
    written = (folder / "tokenizer.json").read_text()
    one_sided = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(written) | {"post_processor": one_sided}))
    with pytest.raises(ConfigError, match=re.escape(str(folder))) as error:
        Ranker.load(folder, device="cpu")
    assert error.value.argument == "backbone"


def test_training_reads_dialogues_as_before(save):
    """The end of a long turn, in the paper's lengths."""
    _, folder = save("mean")
    text = Ranker.from_backbone(folder, "poly", device="cpu").text.config
    assert (text.truncation_side, text.text_truncate) == ("left", 64)


def test_what_is_given_is_not_the_encoders(save):
    _, folder = save("mean")
    config = Ranker.from_backbone(folder, reduction="first", normalize=False, device="cpu").model.config
    assert (config.reduction, config.normalize, config.output_scaling) == ("first", False, 1.0)
    config = Ranker.from_backbone(folder, "cross", device="cpu").model.config
    assert (config.reduction, config.normalize) == ("mean", False)


# ---- every key is followed or refused


def change(file: str, /, **values):
    def edit(folder: Path) -> None:
        path = folder / file
        content = json.loads(path.read_text())
        (content[values.pop("at")] if isinstance(content, list) else content).update(values)
        path.write_text(json.dumps(content))

    return edit


REFUSED = [
    (change("modules.json", at=1, type="my_package.Pooling"), "my_package.Pooling"),
    (change("modules.json", at=0, type="sentence_transformers.models.Router"), "Router"),
    (change("modules.json", at=1, path="../other"), "../other"),
    (change("sentence_bert_config.json", transformer_task="fill-mask"), "transformer_task"),
    (change("sentence_bert_config.json", modality_config={"message": {}}), "modality_config"),
    (
        change("sentence_bert_config.json", processing_kwargs={"text": {"padding": "max_length"}}),
        "processing_kwargs",
    ),
    (change("config_sentence_transformers.json", similarity_fn_name="manhattan"), "manhattan"),
    (change("config_sentence_transformers.json", something="new"), "something"),
    (change("config_sentence_transformers.json", prompts={"query": 3}), "prompts"),
    (change("config_sentence_transformers.json", default_prompt_name="other"), "prompts"),
    (change("1_Pooling/config.json", pooling_mode=["cls", "mean"]), "cls.*mean"),
    (change("1_Pooling/config.json", pooling_mode="mean_sqrt_len_tokens"), "mean_sqrt_len_tokens"),
    (change("2_Dense/config.json", use_residual=True), "Dense"),
    (change("2_Dense/config.json", activation_function="torch.nn.modules.activation.CELU"), "CELU"),
    (change("2_Dense/config.json", module_input_name="token_embeddings"), "token_embeddings"),
    (lambda folder: (folder / "2_Dense" / "model.safetensors").unlink(), "model.safetensors"),
    (lambda folder: (folder / "modules.json").write_text("[{"), "modules.json"),
    (lambda folder: (folder / "config_sentence_transformers.json").write_bytes(b"\xff"), "config_sentence"),
    (lambda folder: shutil.rmtree(folder / "1_Pooling"), "1_Pooling|embedding_dimension"),
]


@pytest.mark.slow
def test_what_rankers_do_not_have_is_refused(save, tmp_path):
    _, folder = save("dense")
    for number, (edit, named) in enumerate(REFUSED):
        edit(shutil.copytree(folder, copy := tmp_path / str(number)))
        with pytest.raises(PolyencoderError, match=f"(?s){re.escape(str(copy))}.*({named})") as error:
            Ranker.load(copy, device="cpu")
        assert len(str(error.value).splitlines()) == 1


def test_dense_weights_that_are_no_numbers(save):
    _, folder = save("dense")
    path = folder / "2_Dense" / "model.safetensors"
    from safetensors.torch import load_file, save_file

    save_file({name: torch.full_like(weight, torch.nan) for name, weight in load_file(path).items()}, path)
    with pytest.raises(PolyencoderError, match="Dense"):
        Ranker.load(folder, device="cpu")


# ---- prompts, and what is no sentence encoder

E5 = {"query": "query: ", "passage": "passage: "}


@pytest.mark.parametrize(
    ("config", "context", "candidate"),
    [
        ({"prompts": E5, "default_prompt_name": None}, "query: ", "passage: "),
        ({"prompts": E5 | {"document": "title: "}}, "query: ", "title: "),
        ({"prompts": {"query": "", "document": ""}, "default_prompt_name": None}, None, None),
        ({"prompts": {"sts": "sts: "} | E5, "default_prompt_name": "sts"}, "query: ", "passage: "),
        ({"prompts": {"sts": "sts: ", "query": ""}, "default_prompt_name": "sts"}, None, "sts: "),
        ({"prompts": E5, "model_type": "CrossEncoder"}, None, None),  # a reranker has the default alone
        ({"prompts": E5, "default_prompt_name": "passage", "model_type": "CrossEncoder"}, "passage: ", None),
        ({}, None, None),
    ],
)
def test_prompts_are_those_of_encode_query_and_encode_document(tmp_path, config, context, candidate):
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(config))
    expected = {"context_prompt": context, "candidate_prompt": candidate}
    assert read_prompts(tmp_path) == {name: text for name, text in expected.items() if text}
    assert read_prompts(tmp_path, explicit=[*expected]) == {}


def test_what_is_no_sentence_encoder(backbone_folder):
    assert read_sentence_encoder(backbone_folder("bert")) is None
    assert read_sentence_encoder("nobody/has-this") is None  # without a network


@pytest.mark.parametrize(
    ("modules", "model", "left_out"),
    [
        (None, "BertModel", None),
        (None, "BertForMaskedLM", None),
        (None, "BertForSequenceClassification", r"classifier \(BertForSequenceClassification\)"),  # a reranker
        (("Transformer",), "BertModel", None),
        (("Transformer", "Dense"), "BertModel", "Dense"),  # a ColBERT
        (("MLMTransformer", "SpladePooling"), "BertForMaskedLM", "SpladePooling"),
    ],
)
def test_trained_layers_that_are_left_out_are_named(backbone_folder, tmp_path, caplog, modules, model, left_out):
    """In a warning where it is trained further; without training it would be another encoder."""
    folder = shutil.copytree(backbone_folder("bert"), tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [model]}))
    if modules:
        described = [{"path": "", "type": f"sentence_transformers.models.{name}"} for name in modules]
        (folder / "modules.json").write_text(json.dumps(described))
    Ranker.from_backbone(folder, "bi")
    warned = [record.getMessage() for record in caplog.records if "only its transformer" in record.getMessage()]
    assert bool(warned) == bool(left_out)
    assert not left_out or re.search(left_out, warned[0])
    if left_out and modules:
        with pytest.raises(ConfigError, match=left_out):
            Ranker.load(folder)
