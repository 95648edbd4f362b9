"""A row at the paper's settings in miniature: its own commands, flags and batch size, small files and a small encoder.

`python -m benchmarks.reproduce all --scale paper --smoke 1`, with `--datapath` and `--set`, does so for every row.
"""

from __future__ import annotations

import pytest
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.reproduce import __main__ as command
from polyencoder.text import train_tokenizer
from tests.task_files import make_datapath


@pytest.fixture(scope="module")
def bert(tmp_path_factory, sentences):
    """A BERT so small that it learns in a moment."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer(sentences, vocabulary_size=300)
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=tokenizer.get_vocab_size(), **sizes)).save_pretrained(folder)
    return folder


def test_a_row_of_the_paper_learns_and_is_evaluated_and_nothing_is_kept(bert, tmp_path, capsys):
    data = make_datapath(tmp_path / "data")
    words = ["convai2", "--row", "poly-16", "--scale", "paper", "--smoke", "1", "--datapath", str(data)]
    assert command.main([*words, "--set", f"bert={bert}", "--out", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out
    assert "convai2-bert-poly-16, seed 0: valid/mrr" in said
    assert not (tmp_path / "results").exists()


def test_what_is_missing_is_said_and_what_needs_it_is_left_out(tmp_path, capsys):
    words = [
        "convert-6",
        "--row",
        "convert",
        "--scale",
        "paper",
        "--datapath",
        str(tmp_path),
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert command.main([*words, "--out", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out
    assert "reddit/train-*.json" in said
    assert "intents-convert, seed 0: missing" in said
    assert "reddit-scratch-convert, see there" in said
    assert "not public" in said
    assert not (tmp_path / "runs").exists()
