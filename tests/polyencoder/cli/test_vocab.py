"""`polyencoder vocab`: the vocabulary that it writes, and what it refuses."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError, InputError, PolyencoderError
from polyencoder.modeling.loading import load_tokenizer
from polyencoder.text.encoder import read_tokenizer
from polyencoder.text.learning import PieceSettings, count_characters, learn_pieces
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from polyencoder.text.subwords.tokenizer import SubwordTokenizer
from tests.commands import run_command


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences * 2))
    return path


def run(*arguments):
    return run_command("vocab", *arguments, "--no-progress")


def test_it_writes_what_the_library_learns(corpus, sentences, tmp_path):
    result = run(corpus, "--out", tmp_path / "vocab", "--min-count", 4)
    assert result.exit_code == 0
    tokenizer = read_tokenizer(tmp_path / "vocab" / "tokenizer.json")
    assert isinstance(tokenizer, SubwordTokenizer)
    expected = learn_subwords(count_words(sentences * 2), SubwordSettings(min_count=4))
    assert tokenizer.subwords == expected.subwords
    assert f"{len(expected.subwords)} subwords that occur at least 4 times in 16 of 16 sentences" in result.output


def test_bars_are_not_written_into_files(corpus, tmp_path):
    arguments = ["vocab", str(corpus), "--min-count", "4", "--out"]
    assert "words:" not in run_command(*arguments, tmp_path / "a").stderr
    assert "words:" in run_command(*arguments, tmp_path / "b", "--progress").stderr


def test_a_size_and_a_sample(corpus, tmp_path):
    result = run(corpus, "--out", tmp_path / "vocab", "--size", 40, "--sample", 10, "--buckets", 9)
    assert "in 10 of 16 sentences, and 9 ids for unknown characters" in result.output
    result = run(corpus, "--out", tmp_path / "one", "--size", 40, "--buckets", 1)
    assert result.output.endswith("in 16 of 16 sentences, and 1 id for unknown characters\n")
    tokenizer = read_tokenizer(tmp_path / "vocab" / "tokenizer.json")
    assert 25 < len(tokenizer.subwords) < 60


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_vocabulary_that_is_there_is_kept(corpus, tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        run(corpus, "--out", tmp_path, "--min-count", 4)
    assert (tmp_path / name).read_text() == "mine"
    assert run(corpus, "--out", tmp_path, "--min-count", 4, "--overwrite").exit_code == 0
    assert [path.name for path in tmp_path.iterdir() if path != corpus] == ["tokenizer.json"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--type", "other"], ConfigError, "type is 'other'; it must be one of convert, bpe, wordpiece"),
        (["--min-count", 0], ConfigError, "min_count is 0"),
        (["--min-count", 1_000], ConfigError, "smaller min_count"),
        (["--size", 0], ConfigError, "size is 0"),
    ],
)
def test_what_it_refuses_it_says(corpus, tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        run(corpus, "--out", tmp_path / "vocab", *arguments)
    assert not (tmp_path / "vocab" / "tokenizer.json").exists()


def test_a_file_is_no_folder(corpus):
    with pytest.raises(ConfigError, match=r"corpus\.txt: is a file; give the name of a folder") as error:
        run(corpus, "--out", corpus)
    assert error.value.argument == "out"


def test_a_corpus_without_text_and_standard_input_are_errors(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="no text in it"):
        run(tmp_path / "empty.txt", "--out", tmp_path / "vocab")
    with pytest.raises(ConfigError, match="read twice"):
        run("-", "--out", tmp_path / "vocab")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_pieces_for_pre_training(corpus, sentences, tmp_path, kind):
    result = run(corpus, "--type", kind, "--size", 80, "--merges", 40, "--out", tmp_path / "vocab")
    assert result.exit_code == 0
    assert "80 tokens trained on 16 of 16 sentences" in result.output
    settings = PieceSettings(kind, 80, 40)
    expected = learn_pieces(sentences * 2, count_characters(sentences * 2, settings), settings)
    assert read_tokenizer(tmp_path / "vocab" / "tokenizer.json").get_vocab() == expected.get_vocab()
    assert load_tokenizer(tmp_path / "vocab")[1]["start_token"] == "[S]"


def test_a_tokenizer_that_appears_meanwhile_is_kept(corpus, tmp_path, monkeypatch):
    def slow_training(*arguments):
        (tmp_path / "tokenizer.json").write_text("theirs")
        return learn_pieces(*arguments)

    monkeypatch.setattr("polyencoder.text.learning.learn_pieces", slow_training)
    with pytest.raises(PolyencoderError, match="another process has written it meanwhile"):
        run(corpus, "--type", "bpe", "--size", 80, "--out", tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == "theirs"
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.txt", "tokenizer.json"}


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("bpe", ["--min-count", 4], "min_count is read only where type is convert, not bpe"),
        ("convert", ["--merges", 4], "merges is read only where type is bpe or wordpiece, not convert"),
        ("wordpiece", ["--size", 4], "size is 4"),
    ],
)
def test_flags_of_another_type_are_errors(corpus, tmp_path, kind, flags, message):
    with pytest.raises(ConfigError, match=message):
        run(corpus, "--type", kind, *flags, "--out", tmp_path / "vocab")
    assert not (tmp_path / "vocab").exists()
