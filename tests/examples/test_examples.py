"""The examples run, with a real encoder, and print what their first lines promise."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def shown(minilm_folder, capsys):
    """(name, *arguments) -> the lines that an example prints."""

    def run(name: str, *arguments) -> list[str]:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.main(*arguments, encoder=str(minilm_folder))
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.slow
def test_a_faq_bot_answers_what_it_knows_and_nothing_else(shown):
    lines = shown("faq_bot", ["can my rain jacket go into the washing machine", "what is the capital of France"])
    assert "Wash jackets at 30 degrees" in lines[0]
    assert lines[1].strip() == "I have no answer to that."


@pytest.mark.slow
def test_filters_hold_and_an_added_candidate_is_found(shown):
    lines = shown("filtered_search", 120)
    hits = [line for line in lines if "Order" in line]
    assert len(hits) == 3
    assert all("boots" in hit and ("Oslo" in hit or "Vienna" in hit) for hit in hits)
    assert "neighbour" in lines[-1]


def test_tools_for_a_journey(shown):
    names = [line.split()[1] for line in shown("choose_tools")]
    assert set(names[:2]) == {"get_weather", "book_train"}


def test_a_reranker_in_langchain(shown):
    pytest.importorskip("langchain_core")
    lines = shown("rerank_langchain")
    assert len(lines) == 3
    assert lines[0].split()[1] == "wash"


def test_every_example_has_a_test():
    tested = Path(__file__).read_text(encoding="utf-8")
    assert [file.stem for file in EXAMPLES.glob("*.py") if f'"{file.stem}"' not in tested] == []
