"""Out of ParlAI: an exported folder, and ParlAI's own models, score in the library as they did in their agents."""

from __future__ import annotations

import os

import pytest

from polyencoder.ranker import Ranker
from tests.commands import run_command

pytestmark = pytest.mark.slow

TURNS = ["hello there !", "where is the owl ?"]


def command(*arguments: object) -> str:
    return run_command(*arguments).stdout


@pytest.mark.parametrize("model", ["polyencoder", "crossencoder"])
def test_an_exported_folder_scores_as_the_agent_did(model, trained, make_agent, respond, labels, tmp_path):
    path, report = trained(model)
    command("export", path, tmp_path / "out")
    agent = make_agent(model, model_file=path, datatype="valid", return_cand_scores=True)
    turns = [{"text": turn, "eval_labels": labels[:1], "label_candidates": labels} for turn in TURNS]
    reply = respond(agent, turns)[0]
    expected = dict(zip(reply["text_candidates"], map(float, reply["sorted_scores"]), strict=True))
    ranker = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    context = [TURNS[0], labels[0], TURNS[1]]  # the agent takes the label for what was answered
    actual = {match.text: match.score for match in ranker.rank(context, labels)}
    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-5)

    card = (tmp_path / "out" / "README.md").read_text()
    assert f"| {report['mrr']:.4g} | {report['loss']:.4g} |" in card  # the last validation's
    assert "| `--task` | `fromfile` |" in card
    assert os.fspath(path.parent) not in card
