"""`polyencoder vocab`: the vocabulary that it writes, and what it refuses."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from polyencoder.cli.main import app
from polyencoder.errors import ConfigError, InputError
from polyencoder.text import read_tokenizer
from polyencoder.text.subwords import SubwordSettings, SubwordTokenizer, count_words, learn_subwords


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences * 2))
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["vocab", *map(str, arguments), "--no-progress"], catch_exceptions=False)


def test_it_writes_what_the_library_learns(corpus, sentences, tmp_path):
    result = run(corpus, "--out", tmp_path / "vocab", "--min-count", 4)
    assert result.exit_code == 0
    tokenizer = read_tokenizer(tmp_path / "vocab" / "tokenizer.json")
    assert isinstance(tokenizer, SubwordTokenizer)
    expected = learn_subwords(count_words(sentences * 2), SubwordSettings(min_count=4))
    assert tokenizer.subwords == expected.subwords
    assert f"{len(expected.subwords)} subwords that are there at least 4 times in 16 of 16 sentences" in result.output


def test_a_size_and_a_sample(corpus, tmp_path):
    result = run(corpus, "--out", tmp_path / "vocab", "--size", 40, "--sample", 10, "--buckets", 9)
    assert "in 10 of 16 sentences, and 9 ids for unknown characters" in result.output
    tokenizer = read_tokenizer(tmp_path / "vocab" / "tokenizer.json")
    assert 25 < len(tokenizer.subwords) < 60


def test_a_vocabulary_that_is_there_is_kept(corpus, tmp_path):
    (tmp_path / "tokenizer.json").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        run(corpus, "--out", tmp_path, "--min-count", 4)
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert run(corpus, "--out", tmp_path, "--min-count", 4, "--overwrite").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--type", "other"], ConfigError, "--type"),
        (["--min-count", 0], ConfigError, "min_count is 0"),
        (["--min-count", 1_000], ConfigError, "smaller min_count"),
        (["--size", 0], ConfigError, "size is 0"),
    ],
)
def test_what_it_refuses_it_says(corpus, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        run(corpus, "--out", tmp_path / "vocab", *arguments)
    assert not (tmp_path / "vocab" / "tokenizer.json").exists()


def test_a_corpus_without_text_and_standard_input_are_errors(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no text in it"):
        run(tmp_path / "empty.txt", "--out", tmp_path / "vocab")
    with pytest.raises(ConfigError, match="read twice"):
        run("-", "--out", tmp_path / "vocab")
