"""`polyencoder inspect`: its table, its JSON and its page, for each architecture."""

from __future__ import annotations

import json

import pytest

from polyencoder.errors import ConfigError, InputError
from tests.commands import command_fails, run_command
from tests.html_page import Page

pytestmark = pytest.mark.slow

CONTEXT = ["do you ski ?", "no , i have two <b>dogs</b> ."]


@pytest.fixture
def run(make_ranker, tmp_path, sentences):
    """(architecture, *arguments, **fields) -> what `polyencoder inspect` prints of a tiny model."""

    def call(architecture: str, *arguments: object, **fields) -> str:
        make_ranker(architecture, **fields).save_pretrained(tmp_path / architecture)
        (tmp_path / "texts.txt").write_text("\n".join(sentences))
        turns = [word for turn in CONTEXT for word in ("--context", turn)]
        options = ["--model", tmp_path / architecture, "--candidates", tmp_path / "texts.txt", *turns, *arguments]
        return run_command("inspect", *options).stdout

    return call


def test_a_poly_encoder_in_the_terminal(run):
    heading, *lines = run("poly", "--top-k", 2).splitlines()
    assert heading == "> do you ski ? / no , i have two <b>dogs</b> ."
    assert lines[0].split()[0] == "1"
    assert lines[1].strip().startswith("context vectors: ")
    assert "Tokens of these context vectors:" in lines
    assert lines[-1].endswith("%")


def test_a_poly_encoder_in_json_is_what_it_ranks_with(run, make_ranker, sentences):
    report = json.loads(run("poly", "--json", "--top-k", 3))
    ranked = make_ranker("poly").rank(CONTEXT, sentences, top_k=3)
    assert [row["text"] for row in report["candidates"]] == [row.text for row in ranked]
    assert all(sum(row["weights"]) == pytest.approx(1, abs=1e-5) for row in report["candidates"])
    assert all(len(row) == len(report["tokens"]) for row in report["token_weights"])
    assert report["tokens"][0] == "[CLS]"
    assert "dogs" in "".join(report["tokens"])


def test_a_page_is_whole_and_shows_tags_of_texts_as_text(run, tmp_path):
    run("poly", "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "b" not in {tag for tag, _ in page.tags}
    assert CONTEXT[1] in page.words
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)
    heats = [attributes for tag, attributes in page.tags if attributes.get("class") == "heat"]
    assert len(heats) > 8 * 4  # of candidates and of tokens


@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        ("bi", "one context vector"),
        ("convert", "one context vector"),
        ("cross", "reads context and candidate together"),
    ],
)
def test_what_a_model_does_not_have_is_said(run, tmp_path, architecture, words):
    assert words in run(architecture, "--html", tmp_path / "page.html").splitlines()[-1]
    assert any(words in word for word in Page((tmp_path / "page.html").read_text(encoding="utf-8")).words)


def test_a_convert_of_several_contexts_has_a_score_of_each_objective(run):
    report = json.loads(run("convert", "--json", extra_contexts=10))
    for candidate in report["candidates"]:
        assert candidate["objectives"].keys() == {"combined", "immediate", "extra"}
        assert candidate["objectives"]["combined"] == pytest.approx(candidate["score"], abs=1e-4)


def test_what_it_refuses(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "model")
    common = ["inspect", "--model", tmp_path / "model", "--context", "hi"]
    command_fails(InputError, "give --candidate TEXT or --candidates FILE", *common)
    command_fails(ConfigError, "candidates is not read with candidate", *common, "--candidate", "a", "-c", "b.txt")
    (tmp_path / "page.html").touch()
    command = [*common, "--candidate", "a", "--html", tmp_path / "page.html"]
    command_fails(ConfigError, "exists already", *command)
    run_command(*command, "--overwrite")
