"""A ranker around an encoder with prompts: read from its files, kept, and part of what an index is made by."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from polyencoder import CheckpointError, Ranker
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

PROMPTS = {"context_prompt": "hi ! ", "candidate_prompt": "hello , "}  # of words that the tiny tokenizer knows
OFF = dict.fromkeys(PROMPTS, "")
LENGTHS = {"text_truncate": 30, "label_truncate": 10}
CONTEXTS, CANDIDATES = [["do you ski ?"], ["no .", "i love snow ."]], ["every winter .", "i love snow ."]


@pytest.fixture
def prompted_encoder(backbone_folder, tmp_path):
    """The folder of an encoder whose files have prompts."""
    folder = shutil.copytree(backbone_folder("bert"), tmp_path / "encoder")
    prompts = {"prompts": {"query": "hi ! ", "passage": "hello , "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def prompted(turns: list[str]) -> list[str]:
    return [f"hi ! {turns[0]}", *turns[1:]]


@mostly_long("architecture", ["bi", "poly", "late", "cross"], quick=2)
def test_scores_are_those_of_texts_with_prompts(prompted_encoder, tmp_path, architecture):
    torch.manual_seed(0)
    ranker = Ranker.from_backbone(prompted_encoder, architecture, text=LENGTHS, device="cpu")
    assert {name: getattr(ranker.text.config, name) for name in PROMPTS} == PROMPTS
    scores = torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES))
    ranker.save_pretrained(tmp_path / "ranker")
    assert torch.equal(
        torch.as_tensor(Ranker.from_pretrained(tmp_path / "ranker", device="cpu").score(CONTEXTS, CANDIDATES)), scores
    )
    torch.manual_seed(0)
    plain = Ranker.from_backbone(prompted_encoder, architecture, text=LENGTHS | OFF, device="cpu")
    expected = torch.as_tensor(
        plain.score([prompted(turns) for turns in CONTEXTS], [f"hello , {text}" for text in CANDIDATES])
    )
    assert torch.equal(scores, expected)
    assert not torch.equal(torch.as_tensor(plain.score(CONTEXTS, CANDIDATES)), expected)


def test_another_prompt_of_candidates_is_another_model(prompted_encoder, tmp_path):
    """One of contexts is not: the index's vectors stay what they are."""
    Ranker.from_backbone(prompted_encoder, text=LENGTHS, device="cpu").index(CANDIDATES, tmp_path / "index")
    asks = Ranker.from_backbone(prompted_encoder, text=LENGTHS | {"context_prompt": "i "}, device="cpu")
    hits = asks.search(CONTEXTS[0], tmp_path / "index")
    assert [(hit.text, pytest.approx(hit.score, abs=1e-4)) for hit in asks.rank(CONTEXTS[0], CANDIDATES)] == [
        (hit.text, hit.score) for hit in hits
    ]
    other = Ranker.from_backbone(prompted_encoder, text=LENGTHS | {"candidate_prompt": ""}, device="cpu")
    with pytest.raises(CheckpointError, match="made by another model, .* this one has another tokenizer"):
        other.search(CONTEXTS[0], tmp_path / "index")


def test_a_new_ranker_takes_over_the_prompts_of_the_one_it_starts_from(prompted_encoder, tmp_path):
    Ranker.from_backbone(prompted_encoder, text=LENGTHS, device="cpu").save_pretrained(tmp_path / "bi")
    config = Ranker.from_backbone(tmp_path / "bi", "cross", text={"label_truncate": 8}, device="cpu").text.config
    assert {name: getattr(config, name) for name in PROMPTS} == PROMPTS
