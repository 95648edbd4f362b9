"""`polyencoder index` and `polyencoder update`, and what they say about input that cannot be used."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.index import FolderIndex
from tests.commands import command_fails, run_command
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@pytest.fixture
def ranker(make_ranker):
    return make_ranker("poly")


@pytest.fixture
def model(ranker, tmp_path) -> Path:
    ranker.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def texts(tmp_path, sentences) -> Path:
    path = tmp_path / "candidates.txt"
    path.write_text("\n".join([*sentences, "", sentences[0]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def call(model):
    """(command, *arguments, input=None) -> what `polyencoder COMMAND --model MODEL ...` prints."""

    def run(command: str, *arguments: object, input: str | None = None) -> str:
        return run_command(command, "--model", model, *arguments, input=input).stdout

    return run


def ids(folder: Path, ranker, **filter) -> set[str]:
    index = FolderIndex.open(folder, ranker)
    hits = index.search(ranker.encode_contexts(["hello"]), top_k=len(index), filter=filter or None)[0]
    return {hit.id for hit in hits}


def read_texts(folder: Path, ranker) -> set[str]:
    index = FolderIndex.open(folder, ranker)
    return {hit.text for hit in index.search(ranker.encode_contexts(["hello"]), top_k=len(index))[0]}


@pytest.mark.usefixtures("forked_commands")
def test_the_command(model, ranker, texts, tmp_path, sentences):
    """The real one, in a process of its own, with a glob and the bar on standard error."""
    more = tmp_path / "candidates.jsonl.gz"
    more.write_bytes(gzip.compress(json.dumps({"text": "a new one", "id": 7, "lang": "en"}).encode()))
    command = [sys.executable, "-m", "polyencoder.cli.main", "index", "--model", model]
    command += ["--candidates", f"{tmp_path}/candidates.*", "--out", tmp_path / "index", "--progress"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'index'}: 9 candidates\n"
    assert "encoding: 100%" in done.stderr
    assert read_texts(tmp_path / "index", ranker) == {*sentences, "a new one"}
    assert ids(tmp_path / "index", ranker, lang="en") == {"7"}


@pytest.mark.usefixtures("forked_commands")
def test_torchrun_is_refused(model, texts, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    command += ["--no-python", Path(sys.executable).parent / "polyencoder", "index", "--model", model]
    command += ["--candidates", texts, "--out", tmp_path / "index"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode != 0
    assert "--workers: leave out torchrun" in done.stderr
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_settings_of_the_folder(call, ranker, texts, tmp_path, dtype):
    options = ["--dtype", dtype, "--shard-size", 3, "--faiss", "ivf-flat", "--no-progress"]
    call("index", "--candidates", texts, "--out", tmp_path / "index", *options)
    index = FolderIndex.open(tmp_path / "index", ranker)
    assert index.meta.dtype == dtype
    assert len(index.vectors.names) == 3
    assert (tmp_path / "index" / index.meta.faiss.file).is_file()
    assert index.meta.model_name == str(tmp_path / "model")


@pytest.mark.parametrize("command", ["index", "update"])
def test_a_recall_is_measured_and_told(call, texts, tmp_path, ranker, command):
    pytest.importorskip("faiss")
    folder, contexts = tmp_path / "index", tmp_path / "contexts.jsonl"
    contexts.write_text('{"context": ["do you ski ?", "no ."]}\n{"context": "hello"}\n')
    options = ["--recall", 0.99, "--contexts", contexts]
    making = ("index", "--candidates", texts, "--out", folder, "--faiss", "ivf-flat,nlist=4,nprobe=1")
    if command == "index":
        output = call(*making, *options)
    else:
        call(*making)
        output = call("update", "--index", folder, *options)
    tuned = FolderIndex.open(folder, ranker).meta.faiss.tuned
    assert (tuned.measured, tuned.contexts, tuned.source) == (1.0, 2, str(contexts))
    assert output.splitlines()[-1] == f"{folder}: {tuned}"
    info = run_command("index", "--info", folder)
    assert info.stdout.splitlines()[0] == f"{folder}: 8 candidates"
    assert info.stdout.splitlines()[-1] == f"recall: 0.99 wanted; {tuned}"


def test_info_of_milvus(call, texts, tmp_path):
    pytest.importorskip("milvus_lite")
    for name, kind in (("one", "flat"), ("two", "auto")):
        where = f"milvus:{tmp_path}/candidates.db#{name}"
        call("index", "--candidates", texts, "--out", where, "--milvus", kind)
        info = run_command("index", "--info", where).stdout.splitlines()
        assert info[0] == f"{where}: 8 candidates"
        assert info[1].startswith("model: ")
        assert info[3].startswith(f"search: Milvus, {kind}: ")
    command_fails(CheckpointError, "no index", "index", "--info", f"milvus:{tmp_path}/candidates.db#three")


def test_info_of_what_is_no_index(tmp_path):
    command_fails(CheckpointError, "no index", "index", "--info", tmp_path)


@mostly_long(
    ("faiss", "expected"),
    [
        ("hnsw,m=8,ef_construction=50,ef_search=20", {"m": 8, "ef_construction": 50, "ef_search": 20}),
        ("ivf-flat,nlist=2,nprobe=2,training_rows=4", {"nlist": 2, "nprobe": 2, "training_rows": 4}),
        ("ivf-pq,nlist=2,pq_m=4,pq_bits=1", {"nlist": 2, "nprobe": 1, "pq_m": 4, "pq_bits": 1}),
    ],
    quick=2,
)
@pytest.mark.parametrize("command", ["index", "update"])
def test_parameters_of_faiss(call, texts, tmp_path, command, faiss, expected):
    library = pytest.importorskip("faiss")
    folder, kind = tmp_path / "index", faiss.partition(",")[0]
    if command == "update":
        call("index", "--candidates", texts, "--out", folder)
        output = call("update", "--index", folder, "--faiss", faiss)
    else:
        output = call("index", "--candidates", texts, "--out", folder, "--faiss", faiss)
    assert output.splitlines()[-1].startswith(f"{folder}: FAISS {kind} (")
    assert json.loads((folder / "meta.json").read_text())["faiss"]["parameters"].items() >= expected.items()
    index = library.read_index(str(next(folder.glob(f"faiss-*-{kind}.index"))))
    built = {
        "hnsw": lambda: {"m": index.hnsw.nb_neighbors(1), "ef_construction": index.hnsw.efConstruction},
        "ivf-flat": lambda: {"nlist": index.nlist},
        "ivf-pq": lambda: {"nlist": index.nlist, "pq_m": index.pq.M, "pq_bits": index.pq.nbits},
    }
    assert built[kind]().items() <= expected.items()


def test_an_index_of_another_installation_is_searched_once_it_is_trusted(call, texts, ranker, tmp_path, monkeypatch):
    pytest.importorskip("faiss")
    folder = tmp_path / "index"
    call("index", "--candidates", texts, "--out", folder, "--faiss", "ivf-flat,nlist=1")
    monkeypatch.setenv("POLYENCODER_KEY", str(tmp_path / "key"))
    search = ("search", "--index", folder, "--context", "hello")
    with pytest.raises(CheckpointError, match="update --trust-faiss"):
        call(*search)
    assert call(*search, "--exactness", "exact")
    (file,) = folder.glob("faiss-*.index")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    with pytest.raises(CheckpointError, match=f"{file.name}: damaged"):
        call("update", "--index", folder, "--trust-faiss")
    file.write_bytes(content)
    assert "trusted" in call("update", "--index", folder, "--trust-faiss")
    exact, certified = (call(*search, "--exactness", kind) for kind in ("exact", "certified"))
    assert certified == exact.replace("exact", "certified")
    call("index", "--candidates", texts, "--out", tmp_path / "plain")
    with pytest.raises(ConfigError, match="FAISS"):
        call("update", "--index", tmp_path / "plain", "--trust-faiss")


def test_standard_input(call, ranker, tmp_path):
    call("index", "--candidates", "-", "--out", tmp_path / "index", input="one\ntwo\n")
    assert read_texts(tmp_path / "index", ranker) == {"one", "two"}


def test_updates(call, model, ranker, tmp_path):
    def write(name: str, *records: dict) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    first = write("first.jsonl", *({"id": i, "text": f"text {i}"} for i in range(6)))
    folder = tmp_path / "index"
    call("index", "--candidates", first, "--out", folder)
    (tmp_path / "ids.txt").write_text("0\n1\n\n")
    changed = write("changed.jsonl", {"id": 3, "text": "another text", "n": 1})
    new = write("new.jsonl", {"id": "x", "text": "text x"})
    removals = ("--remove", tmp_path / "ids.txt", "--remove-id", 2)
    output = call("update", "--index", folder, *removals, "--update", changed, "--add", new)
    assert output == f"{folder}: 3 removed, 1 changed, 1 added\n{folder}: 4 candidates\n"
    assert read_texts(folder, ranker) == {"another text", "text 4", "text 5", "text x"}
    assert ids(folder, ranker, n=1) == {"3"}
    rows = len(FolderIndex.open(folder, ranker).vectors)
    output = call("update", "--index", folder, "--compact", "--faiss", "ivf-flat")
    assert output.startswith(f"{folder}: {rows - 4} removed vectors freed\n{folder}: 4 candidates\n")
    index = FolderIndex.open(folder, ranker)
    assert len(index.vectors) == 4 < rows
    hits = index.search(ranker.encode_contexts(["hello"]), top_k=4, exactness="approximate")[0]
    assert {hit.text for hit in hits} == read_texts(folder, ranker)
    assert {hit.found for hit in hits} <= {"certified", "approximate"}
    output = call("update", "--index", folder, "--remove", write("empty.txt"), "--update", changed, "--add", new)
    counts = "0 removed, 0 changed, 1 unchanged, 0 added, 1 there already"
    assert output == f"{folder}: {counts}\n{folder}: 4 candidates\n"
    (tmp_path / "ids.txt").write_text("3\n0\n")
    removing = ["update", "--model", model, "--index", folder, "--remove", tmp_path / "ids.txt"]
    command_fails(InputError, "ids.txt, line 2: no candidate of the index has the id '0'", *removing)
    command_fails(InputError, "standard input, line 1: no candidate of", *removing[:-1], "-", input="0\n3\n")
    output = call("update", "--index", folder, "--remove-id", 3, "--compact")
    assert output == f"{folder}: 1 removed, 1 removed vectors freed, FAISS index dropped\n{folder}: 3 candidates\n"
    call("update", "--index", folder, "--add", write("years.jsonl", *({"text": f"{n}", "year": n} for n in range(5))))
    output = call(
        "update", "--index", folder, "--remove-id", "x", "--remove-where", "year>=1", "--remove-where", "year<4"
    )
    assert output == f"{folder}: 4 removed\n{folder}: 4 candidates\n"
    unknown = ["update", "--model", model, "--index", folder, "--remove-where", "yaer<4"]
    command_fails(InputError, "cannot filter by 'yaer'", *unknown)
    command_fails(InputError, "--remove-where year: must be KEY=VALUE", *unknown[:-1], "year")


def test_a_file_that_cannot_be_used(model, tmp_path):
    for content, message in [
        (b"", "no candidates: the input is empty"),
        (b"\n \n", "the input is empty"),
    ]:
        path = tmp_path / "bad.txt"
        path.write_bytes(content)
        command_fails(InputError, message, "index", "--model", model, "--candidates", path, "--out", tmp_path / "index")
        assert not (tmp_path / "index").exists()


def test_bad_candidates_can_be_left_out(model, ranker, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "text": "one"}\n{"id": "b"}\nno json\n')
    arguments = ["index", "--model", model, "--candidates", path, "--out", tmp_path / "index", "--skip-bad-candidates"]
    result = run_command(*arguments)
    assert "2 bad records were left out; the first:" in result.stderr
    assert read_texts(tmp_path / "index", ranker) == {"one"}


def test_options_that_cannot_be_used(model, texts, tmp_path):
    for error, message, options in [
        (InputError, "no such file", ["nowhere*.txt"]),
        (CheckpointError, "nowhere: no such folder", ["--model", "nowhere"]),
        (ConfigError, "dtype is 'float8'", ["--dtype", "float8"]),
        (ConfigError, "give its kind", ["--recall", "0.9"]),
        (ConfigError, "give a recall", ["--faiss", "ivf-flat", "--contexts", "-"]),
        (InputError, "no such file", ["--faiss", "ivf-flat", "--recall", "0.9", "--contexts", "nowhere.txt"]),
        (ConfigError, "backend is 'tensorflow'", ["--backend", "tensorflow"]),
    ]:
        candidates = [] if options[0].endswith(".txt") else [texts]
        arguments = ["index", "--model", model, "--out", tmp_path / "index", "--candidates", *candidates, *options]
        command_fails(error, message, *arguments)
        assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("where", ["folder", "milvus:{}/index.db"])
def test_an_update_is_whole_or_not_at_all(model, call, tmp_path, where):
    if where.startswith("milvus"):
        pytest.importorskip("milvus_lite")
    address = where.format(tmp_path) if ":" in where else tmp_path / where
    (tmp_path / "first.jsonl").write_text("".join(f'{{"id": "r{i}", "text": "text {i}"}}\n' for i in range(7)))
    (tmp_path / "more.jsonl").write_text('{"id": "r7", "text": "new"}\n{"id": "r1", "text": "of another text"}\n')
    call("index", "--candidates", tmp_path / "first.jsonl", "--out", address)
    change = ["--index", address, "--remove-id", "r5", "--add", tmp_path / "more.jsonl"]
    command_fails(InputError, "more.jsonl, line 2: the id 'r1' belongs to", "update", "--model", model, *change)
    hits = json.loads(call("search", "--index", address, "--context", "hi", "--top-k", 7, "--json"))["hits"]
    assert {hit["id"] for hit in hits} == {f"r{i}" for i in range(7)}
    assert call("update", *change, "--remove-id", "r1") == f"{address}: 2 removed, 2 added\n{address}: 7 candidates\n"
