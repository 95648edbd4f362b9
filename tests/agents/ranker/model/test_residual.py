"""`-m crossencoder --init-model` of a ranker with vectors: its score is added to that ranker's."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyencoder import ConfigError, Ranker
from polyencoder.errors import CheckpointError
from tests.parameters import mostly_long

TURNS = [
    {"text": f"where is the {animal} ?", "eval_labels": ["my cat is here ."], "label_candidates": labels}
    for animal, labels in [("cat", ["my dog is here .", "my cat is here ."]), ("dog", ["hello", "my cat is here ."])]
]


def _ranked(respond, agent) -> list:
    return [reply["text_candidates"] for reply in respond(agent, *TURNS)]


@pytest.mark.slow
@mostly_long("model", ["biencoder", "polyencoder"], quick=1)
def test_it_starts_as_the_ranker_of_init_model(model, trained, make_agent, respond, tmp_path):
    start, options = str(trained(model)[0]), {"learningrate": 1e-2, "warmup_updates": -1, "special_tok_lst": "_new_"}
    agent = make_agent("crossencoder", init_model=start, model_file=str(tmp_path / "model"), **options)
    before = Ranker.from_pretrained(start, device="cpu")
    texts = [turn["text"] for turn in TURNS]
    assert agent.ranker.base.config.backbone["vocab_size"] == len(agent.dict.text)  # room for the added token
    expected = before.score(texts, TURNS[0]["label_candidates"])
    scores = Ranker(agent.ranker, agent.dict.text, device="cpu").score(texts, TURNS[0]["label_candidates"])
    assert scores.tolist() == [pytest.approx(row, abs=1e-4) for row in expected.tolist()]
    own_order = [[match.text for match in before.rank(turn["text"], turn["label_candidates"])] for turn in TURNS]
    assert _ranked(respond, agent) == own_order

    respond(agent, *[{**turn, "labels": turn["eval_labels"], "eval_labels": None} for turn in TURNS])
    assert agent.ranker.linear.weight.abs().max() > 0
    agent.save()
    again = make_agent("crossencoder", model_file=str(tmp_path / "model"))
    assert json.loads((tmp_path / "model.opt").read_text())["residual"] is True
    assert _ranked(respond, again) == _ranked(respond, agent)
    moved = Ranker.from_pretrained(tmp_path / "model", device="cpu").score(texts, TURNS[0]["label_candidates"])
    assert np.abs(moved - np.asarray(expected)).max() > 1e-3
    with pytest.raises(CheckpointError, match="--residual False"):
        make_agent("crossencoder", model_file=str(tmp_path / "model"), residual=False)
    with pytest.raises(ConfigError, match="person_tokens is True, but the ranker that .* has False"):
        make_agent("crossencoder", model_file=str(tmp_path / "model"), person_tokens=True)


def test_without_it_only_the_encoder_is_taken(trained, make_agent):
    agent = make_agent("crossencoder", init_model=str(trained("biencoder")[0]), residual=False)
    assert agent.ranker.base is None
    with pytest.raises(ConfigError, match="separator is .* to whose score it adds"):
        make_agent("crossencoder", init_model=str(trained("biencoder")[0]), turn_separator="none")
    with pytest.raises(ConfigError, match="residual adds a cross-encoder's score .*--init-model"):
        make_agent("crossencoder", residual=True)
