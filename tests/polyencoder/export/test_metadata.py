"""Metadata of cards: what huggingface_hub reads of them."""

from __future__ import annotations

import pytest
from huggingface_hub import ModelCard

from polyencoder.export.metadata import (
    build_results,
    cut_folder,
    format_front_matter,
    parse_hub_dataset,
    parse_hub_id,
    rename_card,
)


def test_the_hub_reads_what_was_written():
    results = build_results({"R20@1": 0.83671, "loss": float("inf")}, task="t", task_name="T", dataset="d", part="test")
    front = format_front_matter(
        name="a/b", library="l", task="t", tags=["x"], base_model="m", datasets=["d"], results=results
    )
    data = ModelCard(f"{front}\n# a").data
    assert (data.base_model, data.datasets, data.tags, data.model_name) == ("m", ["d"], ["x"], "a/b")
    (result,) = data.eval_results
    assert (result.dataset_split, result.metric_type, result.metric_value) == ("test", "r20@1", 0.8367)


def test_no_index_without_results():
    front = format_front_matter(name="a", library="l", task="t")
    assert "name: a" not in front
    assert "base_model" not in front


@pytest.mark.parametrize("card", ["# a\n", "---\n: : :\n---\n", "---\ntags:  [ a ]\n---\n# a\n", "---\n- 1\n---\n"])
def test_a_card_without_an_index_is_not_rewritten(card):
    assert rename_card(card, name="b") == card


def test_names_of_the_hub(tmp_path):
    assert parse_hub_id("me/model") == "me/model"
    assert [parse_hub_id(name) for name in (str(tmp_path), "./here", "zoo:a/b", "", None)] == [None] * 5
    assert parse_hub_dataset("hf:me/talks:train") == "me/talks"
    assert parse_hub_dataset("hf:me/talks@english:train") == "me/talks"
    assert parse_hub_dataset("talks.jsonl") is None
    assert cut_folder("/a/b.csv,/c/d.csv,e/f.csv") == "b.csv,d.csv,e/f.csv"
    assert cut_folder(("/a/one", "me/two")) == "one,me/two"
    assert cut_folder((0.9, 0.999)) == (0.9, 0.999)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("../alice/data/a.jsonl", "a.jsonl"),
        ("my/../../alice/a.jsonl", "a.jsonl"),
        ("~/data/a.jsonl", "a.jsonl"),
        ("file:///home/alice/a.jsonl", "a.jsonl"),
        ("postgres://alice:secret@host/db", "db"),
        ("C:\\Users\\alice\\a.jsonl", "a.jsonl"),
        ("..\\alice\\a.jsonl", "a.jsonl"),
        ("../alice/", "alice"),
        ("my/a.jsonl", "my/a.jsonl"),
        ("hf:me/talks:train", "hf:me/talks:train"),
        ("a..b", "a..b"),
    ],
)
def test_private_paths_and_addresses_are_cut(path, expected):
    assert cut_folder(path) == expected
