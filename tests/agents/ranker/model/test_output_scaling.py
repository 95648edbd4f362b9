"""`--output-scaling auto`: measured on the first batch of training, kept with the model."""

from __future__ import annotations

import json

import pytest

from polyencoder.checkpoint import read_model_file
from polyencoder.errors import ConfigError
from polyencoder.training.callbacks.output_scaling import BERT_OUTPUT_STD, compute_output_std

pytestmark = pytest.mark.slow

TURNS = [
    {"text": f"{word} there ?", "labels": [f"{word} too"], "label_candidates": ["hi too", "bye too"]}
    for word in ("hi", "bye")
]


@pytest.mark.parametrize("model", ["biencoder", "polyencoder", "crossencoder"])
def test_it_is_measured_before_anything_is_trained(model, make_agent, respond):
    agent = make_agent(model, output_scaling="auto", learningrate=1e-2, warmup_updates=-1)
    assert agent.ranker.config.output_scaling == 1.0
    text = agent.dict.text
    contexts = text.batch_contexts([["hi there ?"], ["bye there ?"]])
    before = compute_output_std(agent.ranker, contexts, text.batch_candidates(["hi too", "bye too"]))
    respond(agent, *TURNS)
    scaling = agent.ranker.config.output_scaling
    assert scaling * before == pytest.approx(BERT_OUTPUT_STD, rel=1e-5)
    assert agent.opt["output_scaling"] == scaling
    respond(agent, *TURNS)  # now of other weights
    assert agent.ranker.config.output_scaling == scaling


def test_saved_resumed_and_fine_tuned(train, evaluate, make_agent, respond, trained, task, tmp_path):
    """The number stays with the model file; a new one is measured for a model that starts from it."""
    path = tmp_path / "model"
    source, _ = trained("biencoder")
    options = {"init_model": str(source), "output_scaling": "auto", "max_train_steps": 3}
    options |= {"load_from_checkpoint": False, "num_epochs": -1, "validation_every_n_epochs": -1}
    report = train("polyencoder", path, **options, validation_every_n_steps=2)
    scaling = read_model_file(path)[0].output_scaling
    assert scaling != 1.0
    assert json.loads((tmp_path / "model.opt").read_text())["output_scaling"] == scaling
    assert evaluate(path)["loss"] == pytest.approx(report["loss"], rel=1e-4)

    resumed = make_agent("polyencoder", model_file=path, output_scaling="auto", datatype="train", **task)
    assert resumed.ranker.config.output_scaling == scaling
    respond(resumed, *TURNS)
    assert resumed.ranker.config.output_scaling == scaling


def test_other_values(make_agent, respond):
    assert make_agent("biencoder", output_scaling=0.25).ranker.config.output_scaling == 0.25
    with pytest.raises(ValueError, match="invalid output_scaling value: 'automatic'"):
        make_agent("biencoder", output_scaling="automatic")
    agent = make_agent("biencoder", output_scaling="auto", normalize_sent_emb=True)
    with pytest.raises(ConfigError, match="normalize already scales"):
        respond(agent, *TURNS)
