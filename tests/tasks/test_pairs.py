"""One's own pairs: JSON lines, CSV, TSV, Parquet and Hugging Face datasets, with any names of columns."""

from __future__ import annotations

import json

import pytest

from polyencoder.errors import ConfigError, InputError

RECORDS = [
    {"context": ["hi !", "hello , do you ski ?"], "response": "i do .", "candidates": ["no .", "i do .", "what ?"]},
    {"context": "good morning", "response": " morning ! ", "candidates": ["morning !", "evening !"]},
]
MESSAGES = [
    ("hi !\nhello , do you ski ?", "i do .", ["no .", "i do .", "what ?"]),
    ("good morning", "morning !", ["morning !", "evening !"]),
]


@pytest.fixture
def make(make_teacher):
    def make(datatype="valid", **options):
        return make_teacher("selection:jsonl", datatype=datatype, **options)

    return make


@pytest.fixture
def save(tmp_path, write, write_csv):
    """(name, records) -> a file in the format that its name says."""

    def save(name, records):
        path = tmp_path / name
        if name.endswith("csv"):
            flat = [["\n".join(r["context"]) if isinstance(r["context"], list) else r["context"]] for r in records]
            rows = [[*row, r["response"], "|".join(r["candidates"])] for row, r in zip(flat, records, strict=True)]
            return write_csv(path, ["context", "response", "candidates"], rows)
        return save_parquet(path, records) if name.endswith("parquet") else write(path, records)

    return save


def save_parquet(path, records):
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists = [r | {"context": [r["context"]] if isinstance(r["context"], str) else r["context"]} for r in records]
    parquet.write_table(arrow.Table.from_pylist(lists), path)
    return path


def fields(messages):
    return [(m["text"], *(m.get("labels") or m["eval_labels"]), m.get("label_candidates")) for m in messages]


@pytest.mark.parametrize("suffix", ["jsonl.gz", "csv", "parquet"])
def test_formats(save, make, messages, suffix):
    path = save(f"pairs.{suffix}", RECORDS)
    for datatype in ("valid", "valid:stream", "train:ordered", "train:ordered:stream"):
        teacher = make(datatype, selection_file=str(path))
        assert teacher.num_examples() == 2
        assert fields(messages(teacher)) == MESSAGES
    assert all(message["episode_done"] for message in messages(make(selection_file=str(path))))


def test_names_of_columns(make, write, tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{"asked": "a ?", "reply": "b", "wrong": ["c", "b"], "id": 1}])
    names = {"selection_context": "asked", "selection_response": "reply", "selection_candidates": "wrong"}
    assert fields([make(selection_file=str(path), **names).act()]) == [("a ?", "b", ["c", "b"])]
    with pytest.raises(InputError, match=r"has no 'context'; it has .*'asked'.*Name the column with the context"):
        make(selection_file=str(path))


def test_candidates_may_be_missing(write, make, tmp_path):
    path = write(tmp_path / "a.jsonl", [{"context": "a", "response": "b"}, {"context": "c", "response": "d"}])
    assert "label_candidates" not in make(selection_file=str(path)).act()
    sampled = make(selection_file=str(path), eval_candidates="inline", num_negatives=1).act()
    assert sorted(sampled["label_candidates"]) == ["b", "d"]


def test_folder(save, make, tmp_path):
    save("mine/train.jsonl", RECORDS)
    save("mine/valid.csv", RECORDS[:1])
    folder = str(tmp_path / "mine")
    for name in ("train.jsonl.lengths", "train.jsonl~", "test.md"):  # the first is ParlAI's
        (tmp_path / "mine" / name).write_text("2\n2\n")
    assert make("train", selection_folder=folder).num_examples() == 2
    assert make("valid", selection_folder=folder).num_examples() == 1
    with pytest.raises(
        InputError, match=f"--selection-folder {folder}: has no test.jsonl, test.csv, ...; it needs one for each part"
    ):
        make("test", selection_folder=folder)


def test_negatives_are_training_responses(write, make, messages, tmp_path):
    write(tmp_path / "train.jsonl", [{"context": f"c{n}", "response": f"train {n}"} for n in range(5)])
    write(tmp_path / "valid.jsonl", [{"context": f"v{n}", "response": f"valid {n}"} for n in range(5)])
    for message in messages(make(selection_folder=str(tmp_path), eval_candidates="inline", num_negatives=5)):
        others = set(message["label_candidates"]) - set(message["eval_labels"])
        assert others == {f"train {n}" for n in range(5)}


def test_patterns_and_lists(write, make, messages, tmp_path):
    for name in "cab":
        write(tmp_path / f"{name}.jsonl", [{"context": name, "response": "x"}])
    seen = messages(make(selection_file=f"{tmp_path}/c.jsonl,{tmp_path}/[ab].jsonl"))
    assert [message["text"] for message in seen] == ["c", "a", "b"]
    with pytest.raises(InputError, match="no such file, and no file matches it"):
        make(selection_file=str(tmp_path / "x*.jsonl"))


@pytest.mark.parametrize("options", [{}, {"selection_file": "a", "selection_folder": "b"}])
def test_one_place_to_read_from(make, options):
    with pytest.raises(ConfigError, match="-t selection:jsonl: give one of --selection-file, --selection-folder and"):
        make(**options)


BAD = [
    ('{"context": "a", "resp', "not JSON"),
    ('{"context": 7, "response": "b"}', "the context is neither a text nor a list of texts, but int"),
    ('{"context": "a", "response": ""}', "the response is empty, not a text"),
    ('{"context": "a", "response": "b", "candidates": [1]}', "the candidates are not a list of texts"),
]


@pytest.mark.parametrize(("line", "problem"), BAD)
@pytest.mark.parametrize("datatype", ["valid", "train:ordered:stream"])
def test_bad_line(write, make, messages, tmp_path, datatype, line, problem):
    line = line if isinstance(line, bytes) else line.encode()
    good = [json.dumps({"context": f"c{n}", "response": "r"}).encode() for n in range(2)]
    path = write(tmp_path / "mine.jsonl", b"\n".join([good[0], line, good[1]]))
    with pytest.raises(InputError, match=f"{path}, line 2: {problem}") as raised:
        messages(make(datatype, selection_file=str(path)))
    assert "\n" not in str(raised.value)
    teacher = make(datatype, selection_file=str(path), skip_bad_examples=True)
    assert [message["text"] for message in messages(teacher)] == ["c0", "c1"]
    assert teacher.report()["bad_examples"].value() == 1


@pytest.fixture
def hub_folder(write, tmp_path, monkeypatch):
    """A dataset for `datasets`: a folder with files of JSON lines."""
    datasets = pytest.importorskip("datasets", reason="needs datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "set/train.jsonl", [{"context": f"c{n}", "response": f"r{n}"} for n in range(30)])
    write(tmp_path / "set/test.jsonl", [{"context": "t", "response": "r"}])
    return tmp_path / "set"


def test_hugging_face_dataset(hub_folder, make, messages, texts):
    hub = {"selection_hf": f"{hub_folder}:train"}
    in_order = [(f"c{n}", f"r{n}", None) for n in range(30)]
    for datatype in ("valid", "valid:stream"):
        teacher = make(datatype, **hub)
        assert teacher.num_examples() == 30
        assert fields(messages(teacher)) == in_order
    stream = make("train:stream", **hub)
    epochs = [texts(stream, 30) for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(text for text, *_ in in_order)
    assert epochs[0] != epochs[1]
    assert make(selection_hf=f"{hub_folder}:test").act()["text"] == "t"


def test_hugging_face_errors(hub_folder, make):
    with pytest.raises(ConfigError, match="dataset squad: give NAME:SPLIT, such as squad:train"):
        make(selection_hf="squad")
    with pytest.raises(InputError, match=f"dataset {hub_folder}:dev: cannot be read"):
        make(selection_hf=f"{hub_folder}:dev")
    with pytest.raises(InputError, match=f"{hub_folder}:train, row 1: has no 'question'; it has 'context', 'response'"):
        make(selection_hf=f"{hub_folder}:train", selection_context="question")
