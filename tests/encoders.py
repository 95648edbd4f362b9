"""Tiny encoders and rerankers of transformers, in folders as `save_pretrained` writes them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

ENCODERS = ["bert", "roberta", "modernbert", "distilbert"]  # in `backbone_folder`

SENTENCES = [
    "hello , how are you today ?",
    "i am fine , thank you . how are you ?",
    "do you have any pets ?",
    "i have two dogs and a cat .",
    "what do you do for a living ?",
    "i am a teacher . i teach math at a high school .",
    "i like to ski in the mountains .",
    "that is great , my brother likes to ski too !",
]


def _word_tokenizer(specials: list[str]) -> Tokenizer:
    """Whole words as tokens, special tokens first: enough to stand for any family's `tokenizer.json`."""
    words = sorted({word for sentence in SENTENCES for word in sentence.split()})
    vocabulary = {token: i for i, token in enumerate([*specials, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]" if "[UNK]" in specials else "<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(specials)
    return tokenizer


@pytest.fixture(scope="session")
def make_hf_tokenizer():
    """(family) -> a transformers tokenizer with the special tokens of "bert" or "roberta"."""
    from transformers import PreTrainedTokenizerFast

    def make(family: str) -> PreTrainedTokenizerFast:
        if family == "roberta":
            return PreTrainedTokenizerFast(
                tokenizer_object=_word_tokenizer(["<s>", "<pad>", "</s>", "<unk>"]),
                bos_token="<s>",
                cls_token="<s>",
                eos_token="</s>",
                sep_token="</s>",
                pad_token="<pad>",
                unk_token="<unk>",
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=_word_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]),
            cls_token="[CLS]",
            sep_token="[SEP]",
            pad_token="[PAD]",
            unk_token="[UNK]",
        )

    return make


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory, make_hf_tokenizer):
    """(kind) -> a folder with a tiny Hugging Face model and its tokenizer, as `save_pretrained` writes them.

    Kinds: the encoders bert, roberta, modernbert, distilbert; gpt2, t5 and bert_decoder, which are none.
    """
    import transformers

    folders: dict[str, Path] = {}
    common = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    bert = common | {"intermediate_size": 32, "max_position_embeddings": 40}
    configs = {
        "bert": lambda: transformers.BertConfig(**bert),
        "bert_decoder": lambda: transformers.BertConfig(**bert, is_decoder=True),
        "roberta": lambda: transformers.RobertaConfig(**bert, pad_token_id=1, type_vocab_size=1),
        "modernbert": lambda: transformers.ModernBertConfig(
            **bert, pad_token_id=0, cls_token_id=2, bos_token_id=2, sep_token_id=3, eos_token_id=3, local_attention=8
        ),
        "distilbert": lambda: transformers.DistilBertConfig(
            vocab_size=64, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=40
        ),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=64, n_embd=16, n_layer=2, n_head=2, n_positions=40, bos_token_id=2, eos_token_id=3
        ),
        "t5": lambda: transformers.T5Config(vocab_size=64, d_model=16, num_layers=1, num_heads=2, d_ff=32, d_kv=8),
    }

    def make(kind: str) -> Path:
        if kind not in folders:
            folder = tmp_path_factory.mktemp(kind)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                model = transformers.AutoModel.from_config(configs[kind]())
            model.save_pretrained(folder)
            make_hf_tokenizer("roberta" if kind == "roberta" else "bert").save_pretrained(folder)
            folders[kind] = folder
        return folders[kind]

    return make


@pytest.fixture
def batch_of(padded):
    """(encoder) -> two sequences that each of `ENCODERS` can read, padded with its own padding."""
    return lambda encoder: padded([[2, 9, 8, 7, 3], [2, 6, 3]], pad_id=encoder.model.config.pad_token_id)


@pytest.fixture(scope="session")
def make_reranker(tmp_path_factory):
    """(family, max_tokens=None, **config) -> the folder of a tiny reranker with random weights, a classifier.

    Its tokenizer makes the pairs of its family, and has the maximum `max_tokens`, if any. Equal arguments have one
    folder.
    """
    import transformers

    common = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    common |= {"intermediate_size": 32, "max_position_embeddings": 64, "initializer_range": 0.5}
    like_roberta = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 66}
    particular = {
        "albert": {"embedding_size": 8},
        "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
        "electra": {"embedding_size": 8},
        "modernbert": {
            "cls_token_id": 2,
            "bos_token_id": 2,
            "sep_token_id": 3,
            "eos_token_id": 3,
            "pad_token_id": 0,
            "local_attention": 8,
            "classifier_pooling": "mean",
        },
        **dict.fromkeys(("camembert", "mpnet", "roberta", "xlm-roberta"), like_roberta | {"type_vocab_size": 1}),
    }

    @functools.cache
    def make(family: str, *, max_tokens: int | None = None, **config) -> Path:
        settings = common | particular.get(family, {}) | {"num_labels": 1} | config
        folder, like_bert = tmp_path_factory.mktemp(family), settings.get("bos_token_id") != 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = transformers.AutoModelForSequenceClassification.from_config(
                transformers.AutoConfig.for_model(family, **settings)
            )
            for parameter in model.parameters():  # biases are 0, and layer normalizations 1
                parameter.data += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(folder)
        start, pad, end, unknown = (
            ("[CLS]", "[PAD]", "[SEP]", "[UNK]") if like_bert else ("<s>", "<pad>", "</s>", "<unk>")
        )
        words = _word_tokenizer([pad, unknown, start, end] if like_bert else [start, pad, end, unknown])
        words.post_processor = processors.TemplateProcessing(
            single=f"{start} $A {end}",
            pair=f"{start} $A {end} $B:1 {end}:1" if like_bert else f"{start} $A {end} {end} $B {end}",
            special_tokens=[(token, words.token_to_id(token)) for token in (start, end)],
        )
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=words,
            cls_token=start,
            sep_token=end,
            pad_token=pad,
            unk_token=unknown,
            **({"model_max_length": max_tokens} if max_tokens else {}),
            model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] if like_bert else [])],
        ).save_pretrained(folder)
        return folder

    return make
