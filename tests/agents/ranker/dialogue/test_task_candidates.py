"""Fixed candidates that are a task's own: the labels of all of its training examples, in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import parlai.utils.logging as logging
import pytest
from parlai.agents.ranker.dialogue.collected import collect_task_candidates, iter_training_labels
from parlai.agents.ranker.dialogue.fixed import read_candidates
from parlai.core.opt import Opt
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainModel

from polyencoder.errors import ConfigError, InputError
from tests.task_files import write

pytestmark = pytest.mark.slow


def test_candidates_of_the_task_serve_when_no_file_is_given(copy_of, trained, evaluate, tmp_path):
    report = evaluate(copy_of("biencoder"), eval_candidates="fixed")
    assert (tmp_path / "model.cands-fromfile.ndjson").exists()
    assert report["accuracy"] == trained("biencoder")[1]["accuracy"]


def test_candidates_of_the_task_are_collected_for_a_model_that_talks_to_itself(make_agent, labels, tmp_path):
    opt = Opt({**make_agent("biencoder").opt, "selfchat_task": True, "model_file": str(tmp_path / "model")})
    assert {*read_candidates(collect_task_candidates(opt))} == {*labels}


def test_the_labels_of_a_task_are_those_of_its_whole_training_data_in_order(task, labels, tmp_path):
    """Whatever part of it a command reads, and by how many processes: the file is kept for other commands."""
    assert sorted(iter_training_labels(Opt({**task, "datatype": "valid"}))) == sorted(labels * 4)
    pairs = [{"context": f"question {n}", "response": f"answer {n % 6}"} for n in range(8)]
    file = str(write(tmp_path / "pairs.jsonl", pairs))
    opt = {"task": "selection:jsonl", "selection_file": file, "model_file": str(tmp_path / "model")}
    path = collect_task_candidates(
        Opt({**opt, "num_examples": 3, "num_workers": 2, "datatype": "valid", "batchsize": 5})
    )
    assert read_candidates(path) == [f"answer {n}" for n in range(6)]


def test_the_labels_of_a_task_include_those_that_only_training_has(tmp_path):
    lines = "1 hi !\thello .\n2 do you ski ?\tyes .\n"
    write(tmp_path / "ConvAI2" / "train_self_original_no_cands.txt", lines)
    opt = Opt({"task": "selection:convai2:both_sides", "datapath": str(tmp_path), "datatype": "valid"})
    assert [*iter_training_labels(opt)] == ["hello .", "yes .", "hi !", "do you ski ?"]


def test_candidates_of_the_task_are_written_before_the_model_has_a_folder(make_agent, labels, tmp_path):
    agent = make_agent("biencoder", candidates="fixed", model_file=str(tmp_path / "new" / "model"))
    assert {*agent.sources["fixed"].texts} == {*labels}
    assert [path.name for path in (tmp_path / "new").glob("*.cands-*")] == ["model.cands-fromfile.ndjson"]
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/model\.cands-fromfile\.ndjson: cannot be written"):
        make_agent("biencoder", candidates="fixed", model_file=str(tmp_path / "file" / "model"))


def test_a_label_of_several_lines_or_with_spaces_around_it_is_one_candidate(copy_of, tmp_path):
    """Split, replies would be single lines; with spaces, a label would be none of its own task's candidates."""
    turns = [[{"id": "a", "text": "hi"}, {"id": "b", "text": text}] for text in ("first\nsecond", " third ", "fourth")]
    for split in ("train", "valid"):
        write(tmp_path / f"my_{split}.jsonl", [{"dialog": [turn]} for turn in turns])
    task = {"task": "jsonfile", "jsonfile_datapath": str(tmp_path / "my"), "jsonfile_datatype_extension": True}
    task |= {"datatype": "valid", "eval_candidates": "fixed", "loglevel": "error"}
    assert EvalModel.main(model_file=str(copy_of("biencoder")), **task)["exs"].value() == 3
    assert read_candidates(f"{tmp_path}/model.cands-jsonfile.ndjson") == ["first\nsecond", "third", "fourth"]


# ---- of which data


def write_pairs(path: Path, *responses: str) -> str:
    return str(write(path, [{"context": "hi", "response": response} for response in responses]))


def collect(**options: Any) -> list[str]:
    return read_candidates(collect_task_candidates(Opt({"task": "selection:jsonl", **options})))


def test_a_tasks_name_is_part_of_a_files_name_without_a_folder(tmp_path, monkeypatch):
    """A colon in a name that begins with it would be read as an address."""
    monkeypatch.chdir(tmp_path)
    assert collect(selection_file=write_pairs(tmp_path / "a.jsonl", "yes"), model_file="m") == ["yes"]
    assert Path("m.cands-selection_jsonl.ndjson").read_text() == '{"text": "yes"}\n'


@pytest.fixture
def log(monkeypatch) -> list[str]:
    """The lines on lists in ParlAI's log."""
    lines: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(logging, level, lambda line: lines.append(line) if ".cands" in line else None)
    return lines


def test_candidates_of_other_data_are_collected_anew(tmp_path, log):
    options = {"selection_file": write_pairs(tmp_path / "a.jsonl", "yes"), "model_file": str(tmp_path / "m")}
    assert collect(**options) == ["yes"]
    write_pairs(tmp_path / "a.jsonl", "no!")  # as long
    log.clear()
    assert collect(**options) == ["no!"]
    assert log == [f"collecting the candidates of selection:jsonl anew in {tmp_path}/m.cands-selection_jsonl.ndjson"]
    other = {**options, "selection_file": write_pairs(tmp_path / "b.jsonl", "maybe")}
    log.clear()
    assert collect(**other) == ["maybe"]
    assert "collecting the candidates of selection:jsonl anew" in log[0]


@pytest.mark.parametrize("option", ["selection_file", "selection_folder"])
def test_candidates_of_more_files_are_collected_anew(option, tmp_path):
    write_pairs(tmp_path / "train.jsonl", "yes")
    value = str(tmp_path / "*.jsonl") if option == "selection_file" else str(tmp_path)
    options = {option: value, "model_file": str(tmp_path / "m")}
    assert collect(**options) == ["yes"]
    write_pairs(tmp_path / "train.1.jsonl", "no")
    assert sorted(collect(**options)) == ["no", "yes"]


def test_candidates_of_parlais_tasks_are_collected_anew(tmp_path, make_task):
    def make(label: str) -> dict[str, Any]:
        options = make_task(tmp_path, train=[[{"text": "hi", "labels": label}]])
        return {**options, "model_file": str(tmp_path / "m")}

    assert collect(**make("yes")) == ["yes"]
    assert collect(**make("no")) == ["no"]


def test_candidates_are_kept_where_the_data_is_the_same_or_is_not_there(tmp_path, log):
    file = write_pairs(tmp_path / "a.jsonl", "yes")
    options = {"selection_file": file, "model_file": str(tmp_path / "m")}
    path = collect_task_candidates(Opt({"task": "selection:jsonl", **options}))
    written = os.stat(path).st_mtime_ns
    log.clear()
    assert collect(**options) == ["yes"]
    os.remove(file)
    assert collect(**options) == ["yes"]
    assert collect(**options, fixed_candidate_vecs=str(tmp_path / "vectors")) == ["yes"]
    assert os.stat(path).st_mtime_ns == written
    assert not log
    with pytest.raises(InputError, match=r"b\.jsonl'?: no such file"):
        collect(**{**options, "selection_file": str(tmp_path / "b.jsonl")})


def test_a_list_without_a_record_is_kept_only_where_the_data_is_not_there(tmp_path):
    file = write_pairs(tmp_path / "a.jsonl", "yes")
    options = {"selection_file": file, "model_file": str(tmp_path / "m")}
    collect(**options)
    (record,) = tmp_path.glob("m.candidates-*.json")
    record.unlink()
    write_pairs(tmp_path / "a.jsonl", "no")
    assert collect(**options) == ["no"]
    record.unlink()
    os.remove(file)
    assert collect(**options) == ["no"]


def test_candidates_of_other_options_are_collected_anew_without_files_too(tmp_path):
    """Other columns give a list of other texts, wherever the data is."""
    options = {"selection_file": write_pairs(tmp_path / "a.jsonl", "yes"), "model_file": str(tmp_path / "m")}
    assert collect(**options) == ["yes"]
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"a\.jsonl'?: no such file"):
        collect(**options, selection_response="answer")


def test_a_retrained_model_answers_with_the_candidates_of_its_new_data(chat, tmp_path):
    for response in ("yes", "no"):
        pairs = [f"{response} {n}" for n in range(4)]
        options = {"task": "selection:jsonl", "selection_file": write_pairs(tmp_path / f"{response}.jsonl", *pairs)}
        options |= {"embedding_size": 8, "ffn_size": 8, "n_layers": 1, "n_heads": 2}
        options |= {"num_negatives": 3, "batchsize": 4, "max_train_steps": 1, "loglevel": "error"}
        TrainModel.main(model="biencoder", model_file=str(tmp_path / "m"), **options)
        assert chat(tmp_path / "m", "hi")[0].startswith(response)
        for path in tmp_path.glob("m*"):
            if ".cand" not in path.name:
                path.unlink()
