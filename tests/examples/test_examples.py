"""The examples run, with a real encoder, and print what their first lines promise."""

from __future__ import annotations

import csv
import importlib.util
import inspect
import json
import re
from pathlib import Path

import pytest
from transformers import BertConfig, BertModel

from polyencoder.modeling.families import FAMILIES

pytestmark = pytest.mark.slow

NAMES = ["TF-IDF", "before", "trained"]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run_example(minilm_folder, capsys):
    """(name, *arguments, **options) -> the lines that an example prints; its encoder is a real one by default."""

    def run(name: str, *arguments, **options) -> list[str]:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if "encoder" in inspect.signature(module.main).parameters:
            options = {"encoder": str(minilm_folder), **options}
        module.main(*arguments, **options)
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def tiny(make_hf_tokenizer, tmp_path) -> str:
    """The folder of a BERT that is trained in a moment."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=64, **sizes)).save_pretrained(tmp_path / "tiny")
    make_hf_tokenizer("bert").save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


def test_a_faq_bot_answers_what_it_knows_and_nothing_else(run_example):
    lines = run_example("faq_bot", ["can my rain jacket go into the washing machine", "what is the capital of France"])
    assert "Wash jackets at 30 degrees" in lines[0]
    assert lines[1].strip() == "I have no answer to that."


def test_filters_hold_and_an_added_candidate_is_found(run_example):
    lines = run_example("filtered_search", 120)
    hits = [line for line in lines if "Order" in line]
    assert len(hits) == 3
    assert all("boots" in hit and ("Oslo" in hit or "Vienna" in hit) for hit in hits)
    assert "neighbour" in lines[-1]


@pytest.mark.long
def test_an_index_serves_the_model_that_reads_conversations(run_example, tmp_path):
    lines = run_example("conversational_search", str(tmp_path / "out"), max_updates=6)
    assert [line for line in lines if not line.startswith(" ")] == ["before", "trained"]
    assert "Refunds reach your bank account" in "".join(lines[lines.index("trained") :])


def test_postgres(run_example, postgres):
    lines = run_example("postgres_search", postgres.address)
    assert len(lines) == 4
    assert "exact  new-shop: " in lines[0]
    assert not any("refund-time" in line for line in lines)


def test_tools_for_a_journey(run_example):
    names = [line.split()[1] for line in run_example("choose_tools")]
    assert set(names[:2]) == {"get_weather", "book_train"}


@pytest.mark.long
def test_a_tool_ranker(run_example, tmp_path):
    """Trained on two tools, measured on two others: what matters is that it runs on data of its form."""
    tools = {"train": ("weather", "train"), "dev": ("weather", "train"), "test": ("weather", "music")}
    for split, names in tools.items():
        turns = [
            {"messages": [{"role": "user", "content": f"{name} {n} of {split}"}], "tools": [name]}
            for name in names
            for n in range(8)
        ]
        turns += [{"messages": [{"role": "user", "content": f"thanks {n} of {split}"}], "tools": []} for n in range(8)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(turn) + "\n" for turn in turns))
        (tmp_path / f"{split}.json").write_text(
            json.dumps([{"name": name, "description": f"{name} ."} for name in names])
        )
    lines = run_example("tools", str(tmp_path), str(tmp_path / "out"), max_updates=1)
    measured = [line for line in lines if line.startswith("R@1 of 2 tools")]
    assert len(measured) == 2  # before training and after
    assert all("unseen" in line for line in measured)
    assert Path(tmp_path / "out" / "model" / "calibration.json").exists()


def test_memories_for_a_conversation(run_example, minilm_folder):
    lines = run_example("memories", str(minilm_folder))
    assert "vegetarian" in lines[1]


def test_intents_of_new_texts(run_example, tmp_path):
    frames = {"card": ["where is my {} card ?", "a new {} card"], "pin": ["i forgot my {} pin", "change the {} pin"]}
    for split, words in (("train", ("gold", "old", "blue")), ("test", ("green", "lost"))):
        rows = [(text.format(word), intent) for intent, texts in frames.items() for text in texts for word in words]
        with (tmp_path / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "category"), *rows])
    first, *predictions = run_example("intents", str(tmp_path / "train.csv"), str(tmp_path / "test.csv"))
    assert first == "accuracy 1.000 on 8 texts"
    assert [line.split()[1] for line in predictions] == ["card:"] * 3


def test_a_reranker_in_langchain(run_example):
    pytest.importorskip("langchain_core")
    lines = run_example("rerank_langchain")
    assert len(lines) == 3
    assert lines[0].split()[1] == "wash"


def test_training_on_own_pairs(run_example, tiny, tmp_path):
    """Their validation file may have any number of candidates."""
    lines = run_example("train_own_pairs", out=str(tmp_path / "out"), encoder=tiny, max_updates=2)
    assert all(re.fullmatch(rf"{name} +R@1 \d\.\d+", line) for name, line in zip(NAMES, lines, strict=False))
    assert lines[-1].startswith("Ranker(bi")


@pytest.mark.long
def test_trials_of_optuna(run_example, tiny, tmp_path):
    *_, best = run_example("tune", str(tmp_path / "study"), encoder=tiny, trials=2, max_updates=2)
    assert re.match(r"best: trial [01], R@1 0\.\d+ with \{'learning_rate'", best)
    assert all((tmp_path / "study" / f"trial-{n}" / "polyencoder.safetensors").is_file() for n in (0, 1))


@pytest.mark.long
def test_a_cross_encoder_teaches_a_bi_encoder(run_example, tiny, tmp_path):
    lines = run_example("distill", str(tmp_path / "out"), encoder=tiny, max_updates=2)
    assert [line.partition(":")[0] for line in lines] == ["teacher", "student"]
    assert (tmp_path / "out" / "student" / "polyencoder.safetensors").is_file()


@pytest.mark.long
def test_a_convert_learns_from_nothing(run_example, tmp_path):
    first, *hits = run_example("convert_from_scratch", str(tmp_path / "out"))
    before, after = (float(word) for word in re.findall(r"\d\.\d+", first))
    assert after > before
    assert len(hits) == 3


def test_a_parlai_task_and_agent(run_example, tiny, tmp_path):
    lines = run_example("parlai_task", str(tmp_path / "model"), encoder=tiny, max_updates=2)
    replies = (EXAMPLES / "support" / "replies.jsonl").read_text(encoding="utf-8").splitlines()
    known = {f"[{reply['metadata']['topic']}] {reply['text']}" for reply in map(json.loads, replies)}
    assert len(lines) >= 2
    assert set(lines[-2:]) <= known


def test_an_architecture_of_ones_own(run_example, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("polyencoder.modeling.families.FAMILIES", FAMILIES.copy())
    lines = run_example("new_architecture", str(tmp_path / "out"), encoder=tiny, max_updates=2)
    assert lines[0].startswith("Ranker(gated")
    assert len(lines) == 2


def test_every_example_has_a_test_and_is_in_the_docs():
    tested = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py"))
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [file.stem for file in EXAMPLES.glob("*.py") if f'"{file.stem}' not in tested] == []
    assert [file.name for file in EXAMPLES.glob("*.py") if file.name not in page] == []
