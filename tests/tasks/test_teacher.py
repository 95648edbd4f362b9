"""What all tasks share: streams that begin at once, every example once an epoch, bad examples, ParlAI's commands."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter

import pytest
from parlai.core.metrics import AverageMetric
from parlai.scripts.display_data import DisplayData
from parlai.tasks.selection import teacher as teacher_module
from parlai.tasks.selection.pairs import JsonlTeacher

from polyencoder.data.epochs import Reader
from polyencoder.errors import ConfigError, InputError
from tests.tasks.reading import TRAINING, clones_of, questions

TASKS = ["convai2", "dstc7", "dstc7:plain", "ubuntu", "wiki", "reddit", "amazonqa"]


# ---- streams


def test_a_stream_begins_at_once(make_teacher, pairs, monkeypatch):
    """Two episodes are read before the first message, however large the file: the shuffling buffer fills later."""
    read: list[int] = []
    original = JsonlTeacher.read

    def counting(self, file, bad):
        read.append(0)
        for episode in original(self, file, bad):
            read[-1] += 1
            yield episode

    monkeypatch.setattr(JsonlTeacher, "read", counting)
    teacher = make_teacher("selection:jsonl", datatype="train:stream", candidates="batch", **pairs(9000))
    assert teacher.act()["text"] in questions(0, 1)
    assert max(read) == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_stream_holds_a_buffer_and_no_more(make_teacher, write, tmp_path, texts):
    """30 MB are read twice with less than 3 MB of memory."""
    filler = "x" * 3000
    path = write(tmp_path / "long.jsonl", ({"context": f"{n} {filler}", "response": str(n)} for n in range(10_000)))
    assert path.stat().st_size > 30_000_000
    options = {"selection_file": str(path), "shuffle_buffer": 200, "candidates": "batch"}
    tracemalloc.start()
    try:
        teacher = make_teacher("selection:jsonl", datatype="train:stream", **options)
        seen = Counter(int(text.split()[0]) for text in iter_texts(teacher, 10_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seen == Counter(range(10_000))
    assert peak < 3_000_000


def iter_texts(teacher, count):
    return (teacher.act()["text"] for _ in range(count))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_streams_give_what_memory_gives(make_teacher, messages, datapath, task, split):
    in_order = "train:evalmode" if split == "train" else split
    memory, stream = (
        make_teacher(f"selection:{task}", datatype=datatype, datapath=str(datapath), wiki_candidates=5)
        for datatype in (in_order, f"{in_order}:stream")
    )
    assert messages(stream) == messages(memory) != []
    assert (stream.num_episodes(), stream.num_examples()) == (memory.num_episodes(), memory.num_examples())


# ---- epochs


@pytest.mark.parametrize("datatype", TRAINING)
def test_every_example_once_an_epoch_in_another_order(make_teacher, pairs, texts, datatype):
    file = pairs(30)

    def three_epochs(**options):
        teacher = make_teacher("selection:jsonl", datatype=datatype, **file, **options)
        return [texts(teacher, 30) for _ in range(3)]

    epochs = three_epochs()
    assert all(sorted(epoch) == sorted(questions(*range(30))) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert three_epochs() == epochs
    assert three_epochs(teacher_seed=0.0) == epochs
    assert three_epochs(teacher_seed=3.0) != epochs


@pytest.mark.parametrize(
    "datatype", ["train:ordered", "train:evalmode", "valid", "valid:stream", "train:ordered:stream"]
)
def test_evaluation_keeps_the_order_and_ends(make_teacher, pairs, datatype):
    teacher = make_teacher("selection:jsonl", datatype=datatype, **pairs(3))
    for _ in range(2):
        teacher.reset()
        seen = []
        while not teacher.epoch_done():
            seen.append(teacher.act()["text"])
        assert seen == questions(0, 1, 2)
        assert teacher.act().is_padding()


@pytest.mark.parametrize("datatype", ["train", "train:stream", "valid"])
def test_a_batch_shares_the_episodes(make_teacher, datapath, datatype):
    """Clones take turns, as in a BatchWorld: each conversation goes to one of them whole."""
    teacher = make_teacher("selection:convai2", datatype=datatype, datapath=str(datapath))
    clones = [teacher.clone() for _ in range(4)]
    rounds = [[clone.act() for clone in clones] for _ in range(teacher.num_examples() // len(clones))]
    for first, second in zip(rounds[::2], rounds[1::2], strict=True):
        for before, after in zip(first, second, strict=True):
            assert before["text"].startswith("your persona: ")
            assert (before["episode_done"], after["episode_done"]) == (False, True)
    texts = [message["text"] for row in rounds for message in row]
    assert len(set(texts)) == len(texts) == teacher.num_examples()
    assert all(clone.epoch_done() for clone in clones) == (datatype == "valid")


@pytest.mark.parametrize("readers", [1, 2, 3])
@pytest.mark.parametrize("datatype", [*TRAINING, "valid", "valid:stream"])
def test_processes_share_the_examples(make_teacher, pairs, texts, monkeypatch, readers, datatype):
    file = pairs(20)
    monkeypatch.setattr(teacher_module, "num_workers", lambda: readers)
    seen = []
    for number in range(readers):
        monkeypatch.setattr(teacher_module, "get_rank", lambda number=number: number)
        teacher = make_teacher("selection:jsonl", datatype=datatype, shuffle_buffer=5, **file)
        assert teacher.num_examples() == 20  # ParlAI adds up what the processes did, and divides by this
        seen += texts(teacher, len(range(number, 20, readers)))
    assert sorted(seen) == sorted(questions(*range(20)))


def test_mutators_apply(make_teacher, datapath):
    plain = make_teacher("selection:convai2", datapath=str(datapath))
    flat = make_teacher("selection:convai2", datapath=str(datapath), mutators="flatten")
    first, second = plain.act(), plain.act()
    assert flat.act()["text"] == first["text"]
    assert flat.act()["text"] == "\n".join([first["text"], first["eval_labels"][0], second["text"]])


def test_an_unknown_mutator():
    with pytest.raises(ConfigError, match="unknown mutator 'flaten'; did you mean flatten"):
        JsonlTeacher.add_cmdline_args(DisplayData.setup_args(), {"mutators": "last_turn,flaten"})


@pytest.mark.parametrize("datatype", TRAINING)
def test_training_mixes_what_mutators_make(make_teacher, datapath, messages, datatype):
    """The fixture's 16 dialogues have two turns each, which come first and second without the mutator."""
    options = {"datapath": str(datapath), "candidates": "batch"}
    flat = make_teacher("selection:convai2", datatype=datatype, mutators="flatten", **options)
    in_order = make_teacher("selection:convai2", datatype="train:ordered", mutators="flatten", **options)
    expected = sorted(message["text"] for message in messages(in_order))
    take, histories = clones_of(flat), []
    for _ in range(3):
        batches = take(8)
        assert all(message["episode_done"] for batch in batches for message in batch)
        assert sorted(message["text"] for batch in batches for message in batch) == expected
        histories.append([[len(message["text"].split("\n")) for message in batch] for batch in batches])
    assert all(sum(len(set(batch)) == 2 for batch in epoch) >= 4 for epoch in histories)
    plain = clones_of(make_teacher("selection:convai2", datatype=datatype, **options))(8)
    assert [len({message["episode_done"] for message in batch}) for batch in plain] == [1] * 8


@pytest.mark.parametrize("datatype", ["valid", "valid:stream", "train:ordered", "train:evalmode"])
def test_evaluation_takes_what_mutators_make_where_the_dialogue_was(make_teacher, datapath, datatype):
    """The batches of an evaluation are the same with and without `flatten`, so batch candidates are too."""
    answers = []
    for mutators in (None, "flatten"):
        options = {"datapath": str(datapath), "mutators": mutators, "eval_candidates": "batch"}
        teacher = make_teacher("selection:convai2", datatype=datatype, **options)
        rounds = clones_of(teacher)(teacher.num_examples() // 4)
        answers.append([[message.get("labels", message.get("eval_labels")) for message in row] for row in rounds])
        assert teacher.epochs.over
    assert answers[0] == answers[1]


# ---- what cannot be used


@pytest.mark.parametrize("datatype", ["train", "train:stream", "valid", "valid:stream"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_an_error(make_teacher, write, tmp_path, datatype, content):
    path = write(tmp_path / "empty.jsonl", content)
    with pytest.raises(InputError, match=f"{path}: holds no example for -t selection:jsonl -dt {datatype}$"):
        make_teacher("selection:jsonl", datatype=datatype, selection_file=str(path))


@pytest.mark.parametrize("datatype", ["train", "train:stream", "valid", "valid:stream"])
def test_bad_examples_are_counted_once(make_teacher, write, tmp_path, texts, datatype):
    """Though a stream reads them in every epoch, and the candidates' sampler too."""
    good = [json.dumps({"context": f"question {n}", "response": f"answer {n}"}) for n in range(6)]
    path = write(tmp_path / "mixed.jsonl", "\n".join(["{", *good[:3], '{"context": "only"}', *good[3:], "[]"]))
    options = {"selection_file": str(path), "candidates": "inline", "eval_candidates": "inline", "num_negatives": 2}
    with pytest.raises(InputError, match=f"{path}, line 1: not JSON"):
        make_teacher("selection:jsonl", datatype=datatype, **options)
    teacher = make_teacher("selection:jsonl", datatype=datatype, skip_bad_examples=True, **options)
    for _ in range(3):
        teacher.reset()
        assert sorted(texts(teacher, 6)) == questions(*range(6))
    assert teacher.report()["bad_examples"].value() == 3
    assert teacher.clone().report()["bad_examples"].value() == 3


def test_bad_examples_of_several_processes_are_not_added_up(make_teacher, write, tmp_path):
    path = write(tmp_path / "mixed.jsonl", '{"context": "a", "response": "b"}\nno\n')
    report = make_teacher("selection:jsonl", selection_file=str(path), skip_bad_examples=True).report()
    assert (report["bad_examples"] + AverageMetric(1)).value() == 1


# ---- ParlAI's commands


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("datatype", ["train", "train:stream", "valid"])
def test_display_data(capsys, datapath, task, datatype):
    options = {"wiki_candidates": 4} if task == "wiki" else {}
    DisplayData.main(task=f"selection:{task}", datapath=str(datapath), datatype=datatype, num_examples=3, **options)
    output = capsys.readouterr().out
    assert output.count(" is number ") >= 6
    assert f"NEW EPISODE: selection:{task}" in output


@pytest.mark.parametrize(
    ("opt", "expected"),
    [
        ({"datatype": "train"}, Reader(1, 3)),
        ({"datatype": "train:stream", "num_workers": 2, "background_index": 0}, Reader(2, 6)),
        ({"datatype": "train", "num_workers": 2, "background_index": 1}, Reader(3, 6)),
        ({"datatype": "train", "num_workers": 2}, Reader(2, 6)),  # the process that drives the workers
        ({"datatype": "valid", "num_workers": 2}, Reader(1, 3)),  # which evaluation has none of
    ],
)
def test_reader_of_a_process(monkeypatch, opt, expected):
    monkeypatch.setattr(teacher_module, "get_rank", lambda: 1)
    monkeypatch.setattr(teacher_module, "num_workers", lambda: 3)
    assert teacher_module._get_reader(opt) == expected
