"""ParlAI's own commands on our four agents, from training to a conversation."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from parlai.scripts.display_model import DisplayModel
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.eval_wordstat import EvalWordStat
from parlai.scripts.generate_model_card import GenerateModelCard
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import InputError
from tests.agents.conftest import answers_in
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

MODELS = ["polyencoder", "crossencoder", "biencoder", "lateencoder"]
RANKING = ["accuracy", "hits@1", "hits@5", "R8@1", "R8@5", "rank", "mrr", "f1"]
CHANCE = 1 / 8


@mostly_long("model", MODELS, quick=2)
def test_a_learnable_task_is_learned(model, trained):
    path, report = trained(model)
    stats = json.loads(path.with_name("model.trainstats").read_text())
    validations = [report["loss"] for report in stats["valid_reports"]]
    training = [report["mean_loss"] for report in stats["train_reports"]]
    assert len(validations) == 3
    assert validations[-1] < 0.5 * validations[0]
    assert training[-1] < 0.5 * training[0]
    assert report["accuracy"] == report["hits@1"] == report["R8@1"] > 5 * CHANCE


@mostly_long("model", MODELS, quick=2)
def test_eval_model_repeats_the_last_validation(model, trained, evaluate, task_of):
    path, report = trained(model)
    again = evaluate(path, **task_of(model))
    assert {name: again[name] for name in RANKING} == {name: report[name] for name in RANKING}
    assert again["loss"] == pytest.approx(report["loss"], rel=1e-4)
    in_training = json.loads(path.with_name("model.trainstats").read_text())["valid_reports"][-1]
    assert {name: again[name] for name in RANKING} == {name: in_training[name] for name in RANKING}


@mostly_long("model", MODELS, quick=1)
def test_display_model_shows_the_answers(model, trained, task_of, capsys):
    path, report = trained(model)
    DisplayModel.main(model_file=str(path), num_examples=24, loglevel="error", **task_of(model))
    pairs = re.findall(r"labels: (.*)\n\s*model: (.*)", re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out))
    assert len(pairs) == 24
    assert sum(label == answer for label, answer in pairs) / 24 == pytest.approx(report["accuracy"])


# An empty message first; [DONE] ends a conversation, the end of the input the last one.
CONVERSATION = "\n[DONE]\nwhere is the owl ?\n[DONE]\nwhere is the cat ?\n"


def test_interactive_answers_with_a_fixed_candidate(copy_of, candidates_file, labels, chat):
    """Of a cross-encoder; test_index.py compares models that can search with this."""
    answers = chat(copy_of("crossencoder"), CONVERSATION, fixed_candidates_path=str(candidates_file))
    assert len(answers) == 3
    assert set(answers) <= set(labels)


@pytest.mark.usefixtures("forked_commands")
def test_interactive_in_a_shell_takes_its_candidates_from_the_task(copy_of, labels):
    command = [sys.executable, "-m", "parlai", "interactive", "-mf", str(copy_of("polyencoder"))]
    done = subprocess.run(command, input=CONVERSATION, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert answers_in(done.stdout)[1:] == ["my owl is here .", "my cat is here ."]


def test_ones_own_dialogues_as_json_lines(tmp_path):
    """The README's way: a file in ParlAI's JSON format, no candidates; evaluation takes the batch's."""
    path = tmp_path / "my.jsonl"
    turns = [[{"id": "user", "text": f"hi {n} !"}, {"id": "us", "text": f"hello {n} ."}] for n in ("ann", "bob", "eve")]
    path.write_text("".join(json.dumps({"dialog": [turn]}) + "\n" for turn in turns), encoding="utf-8")
    mine = f"-t jsonfile --jsonfile-datapath {path} --jsonfile-datatype-extension false -mf {tmp_path / 'model'}"
    size = "--embedding-size 32 --ffn-size 32 --n-layers 1 --eval-candidates batch -bs 2 --num-epochs 4 --seed 1"
    TrainModel.main(*f"-m polyencoder {mine} {size}".split())
    assert EvalModel.main(*f"{mine} --eval-candidates batch --batchsize 3".split())["hits@5"].value() == 1
    with pytest.raises(InputError, match="has no candidates of its own, which --eval-candidates inline needs"):
        EvalModel.main(*mine.split())


def test_word_statistics_and_parlais_own_model_card(trained, task, tmp_path, capsys):
    """Commands that ask more of a dictionary than rankers do."""
    path, _ = trained("biencoder")
    EvalWordStat.main(model_file=str(path), num_examples=8, freq_bins="10,20,1000", loglevel="error", **task)
    words, below_10, below_20, below_1000 = map(
        int, re.search(r"total_words: (\d+), <10:(\d+) .*<20:(\d+) .*<1000:(\d+) ", capsys.readouterr().out).groups()
    )
    assert words == below_10 + below_20 + below_1000
    assert below_10
    assert below_1000, "the words that all answers have"

    card = {"model_file": str(path), "folder_to_save": str(tmp_path), "mode": "gen:sample", "evaltask": "fromfile"}
    GenerateModelCard.main(**card, **{name: value for name, value in task.items() if name != "task"})
    assert json.loads((tmp_path / "sample.json").read_text())["text"]
