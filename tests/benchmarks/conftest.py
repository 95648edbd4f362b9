"""What the benchmarks measure in the tests."""

from __future__ import annotations

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from polyencoder.text import train_tokenizer


@pytest.fixture(scope="session")
def bert(tmp_path_factory, sentences):
    """A BERT so small that it learns in a moment."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer(sentences, vocabulary_size=300)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    return folder
