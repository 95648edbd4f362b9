"""Option files from elsewhere: only JSON is read, and no code that they name is trusted."""

from __future__ import annotations

import json

import pytest

from polyencoder.errors import CheckpointError
from polyencoder.importing.options import check_options, read_options
from polyencoder.ranker import Ranker
from tests.commands import invoke


@pytest.fixture
def opt(tmp_path):
    """(options) -> a file of them, `model.opt`."""

    def write(options):
        path = tmp_path / "model.opt"
        path.write_bytes(options if isinstance(options, bytes) else json.dumps(options).encode())
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04}.",
        b"(dp0\n.",
        b"{",
        b"[" * 100_000,
        '{"model": "polyencoder"}'.encode("utf-16"),
        b'{"a": "\xff"}',
    ],
)
def test_what_is_not_json(content, opt):
    with pytest.raises(CheckpointError, match=r"model\.opt: not valid JSON"):
        read_options(opt(content))


def test_what_is_no_object_or_no_file(opt, tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.opt: not the options of a model"):
        read_options(opt([1]))
    (tmp_path / "folder.opt").mkdir()
    for name in ("none.opt", "folder.opt", "n" * 300):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_options(tmp_path / name)


@pytest.mark.parametrize(
    "options",
    [
        {
            "model": "polyencoder",
            "task": "convai2",
            "dict_class": "parlai.agents.ranker.dictionary:RankerDictionary",
        },
        {"model": "transformer/polyencoder", "task": "#all,selection:jsonl,parlai.tasks.babi.agents:DefaultTeacher"},
        {"model": "parlai.agents.transformer.polyencoder:PolyencoderAgent"},
        {"model": "internal:ranker", "task": "internal:reddit:presence,fromfile:fromfile_datapath=a.b/c:d.e"},
        {"starttime": "Nov22_10-30", "index": "milvus:http://localhost:19530", "model_file": "a.b/c:d"},
        {"hits_at": "1,5", "n": 3, "none": None, "list": [1, "parlai.core.dict:DictionaryAgent"]},
    ],
)
def test_what_training_writes_is_good(options, opt):
    assert check_options(opt(options)) == options


BAD = [
    {"model": "evil.module:Class"},
    {"model": "evil:Class"},
    {"model": "projects:evil:evil"},
    {"model": "parlaievil.module:Class"},
    {"task": "convai2,some.module:Teacher"},
    {"task": "some.module"},
    {"evaltask": "some.module:Teacher:options"},
    {"dict_class": "evil:Dictionary"},
    {"anything": "evil.module:Class"},
    {"anything": ["parlai.core.dict:DictionaryAgent", "evil.module:Class"]},
    {"override": {"model": "evil.module:Class"}},
    {"override": {"deep": {"dict_class": "evil:Dictionary"}}},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_code_of_others(options, opt):
    with pytest.raises(CheckpointError, match=r"model\.opt: its '\w+' is '.*': code outside ParlAI and this project"):
        check_options(opt({"model": "biencoder", **options}))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"task": "some.module:Teacher"}, "some.module"),
        ({"model": "own.agent:Agent", "dict_class": "own.dictionary:Dictionary"}, "own.agent"),
    ],
)
def test_code_that_the_user_names(options, named, opt):
    assert check_options(opt(options), named=[named]) == options
    with pytest.raises(CheckpointError):
        check_options(opt(options), named=["another"])


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_the_library_runs_no_pickle_beside_a_model_file(protocol, malicious_pickle, opt, tmp_path):
    content, witness = malicious_pickle(protocol)
    opt(content)
    (tmp_path / "model").write_bytes(b"weights")
    with pytest.raises(CheckpointError, match=r"model\.opt: not valid JSON"):
        Ranker.from_pretrained(tmp_path / "model")
    assert not witness.exists()


class TestCommand:
    """`polyencoder check`."""

    @pytest.fixture
    def check(self):
        """(*arguments) -> the exit code and the output."""

        def run(*arguments):
            result = invoke("check", *arguments)
            return result.exit_code, result.output

        return run

    @pytest.mark.parametrize("name", ["model.opt", "model.checkpoint.opt"])
    def test_a_pickle(self, name, check, opt, malicious_pickle, tmp_path):
        content, witness = malicious_pickle(4)
        opt({"model": "polyencoder"})
        (tmp_path / name).write_bytes(content)
        code, output = check(tmp_path / "model")
        assert code == 1
        assert f"{name}: not valid JSON" in output
        assert "\n" not in output.strip().rpartition("polyencoder: ")[2]
        assert not witness.exists()

    def test_code_of_others(self, check, opt):
        path = opt({"model": "polyencoder", "task": "some.module:Teacher"})
        code, output = check(path)
        assert (code, "name some.module:Teacher yourself (flag --trust)" in output) == (1, True)
        assert check(path, "--trust", "some.module:Teacher")[0] == check(path, "--trust", "some.module")[0] == 0

    def test_weights(self, check, opt, malicious_pickle, tmp_path):
        content, witness = malicious_pickle(4)
        opt({"model": "polyencoder"})
        (tmp_path / "model").write_bytes(content)
        code, output = check(tmp_path / "model")
        assert (code, "not a file of weights that can be read safely" in output) == (1, True)
        assert not witness.exists()

    def test_nothing_there(self, check, tmp_path):
        code, output = check(tmp_path / "model")
        assert (code, "no such model, index or .opt file" in output) == (1, True)
