"""What a shell shows of ParlAI's commands: errors in one line."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import parlai.utils.logging as logging
import pytest
from parlai.agents.ranker import console
from parlai.core.script import superscript_main

from polyencoder.errors import ConfigError

pytestmark = pytest.mark.slow

TINY = "--embedding-size 16 --ffn-size 16 --n-layers 1 --n-heads 2 --text-truncate 32 --dict-maxtokens 300 "
TINY += "--dict-maxexs 40"


@pytest.fixture
def command(monkeypatch, capsys):
    """(arguments) -> (exit code, standard output, standard error) of `parlai ARGUMENTS`, run in this process."""

    def run(arguments: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["parlai", *arguments.split()])
            patch.setattr(sys, "excepthook", sys.__excepthook__)
            patch.setattr(logging.logger, "disabled", False)
            patch.setattr(logging.logger.manager, "disable", 0)
            logging.logger.setLevel(logging.INFO)
            logging.logger._cache.clear()
            patch.setattr(logging.logger.streamHandler, "level", logging.DEBUG)
            patch.setattr(logging.logger.streamHandler, "stream", sys.stdout)
            patch.setattr(console, "_get_program", lambda: "parlai")
            code = 0
            try:
                superscript_main(arguments.split())
            except SystemExit as end:
                code = int(end.code or 0)
            except Exception as error:
                sys.excepthook(type(error), error, error.__traceback__)  # as Python does
                code = 1
        out, err = capsys.readouterr()
        return code, out, re.sub(r"(\r?Building dictionary:[^\r\n]*)+\n", "", err)

    return run


@pytest.mark.long
def test_a_shell_sees_one_line(tmp_path):
    """The whole way, as it is installed: an error of ours after ParlAI has begun its work, no traceback."""
    arguments = f"train_model -m biencoder -t selection:jsonl --selection-folder {tmp_path}/none -mf {tmp_path}/m"
    shell = [sys.executable, "-W", "ignore", "-m", "parlai", *arguments.split()]
    done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert re.fullmatch(f"error: .*{tmp_path}/none: has no train.jsonl, .*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("-m polyencoder --poly-n-code 4", "unrecognized arguments: --poly-n-code 4; did you mean --poly-n-codes?"),
        ("-m biencoder --hitsat 1", "unrecognized arguments: --hitsat 1; did you mean --hits-at?"),
        ("-m biencoder --xyzzy-qwerty", "unrecognized arguments: --xyzzy-qwerty"),
        ("-m transformer/biencoder --shuffle-bufer 9", "; did you mean --shuffle-buffer?"),
        ("--eval-candidates batch", "batch; no/model.opt (-mf) does not exist, and without -m no agent has such flags"),
        ("-m biencoder --candidates all", "argument --candidates/--cands: invalid choice: 'all' (choose from"),
    ],
)
def test_typing_errors_are_answered_without_the_help(command, arguments, expected):
    code, out, err = command(f"train_model -t selection:sample -mf no/model {arguments}")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert expected in err
    assert err.endswith("train_model --help lists all flags)\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (f"train_model -m biencoder -mf no/m {TINY} --hits-at x", r"hits_at is 'x'; give whole .* \(flag --hits-at\)"),
        (
            f"train_model -m polyencoder -mf no/m {TINY} --poly-n-codes 0",
            r"n_codes is 0; it must be at least 1 \(flag --poly-n-codes\)",
        ),
        (
            "train_model -m biencoder -mf no/m -t selection:jsonl --selection-hf squad",
            r"dataset squad: give NAME:SPLIT, .* \(flag --selection-hf\)",
        ),
        ("eval_model -mf no/model", "no/model: there is no such model file; check -mf"),
        ("train_modle -m biencoder", r"parlai train_modle: there is no such command; did you mean train_model\?"),
        ("train_model -m polyencodr -mf no/m", r"-m polyencodr: .* no such agent; did you mean polyencoder\?"),
        ("eval_model -m tfidf -mf no/m", "-m tfidf: .* no such agent; use polyencoder evaluate --baseline tfidf"),
        ("train_model -m pretrain_ranker -mf no/m", "-m pretrain_ranker: .* no such agent; use polyencoder pretrain"),
        ("train_model -m biencoder -t selection:convai -mf no/m", r"-t selection:convai: there are .*convai2\?"),
    ],
)
def test_errors_of_a_command_are_one_line(command, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(f"{arguments} {'' if ' -t ' in arguments else '-t selection:sample'}")
    assert code == 1
    assert re.fullmatch(f"error: {expected}\n", err)


def test_debug_shows_the_traceback(command, tmp_path):
    arguments = f"train_model -m biencoder -t selection:sample -mf {tmp_path}/m {TINY} --hits-at x --debug"
    code, _, err = command(arguments)
    assert code == 1
    assert err.startswith("Traceback")
    assert "ConfigError: hits_at is 'x'" in err


def test_what_is_not_ours_is_shown_as_ever(command, tmp_path):
    """A bug is no typing error: it keeps its traceback."""
    code, _, err = command(f"eval_model -m biencoder -mf {tmp_path}/model -t integration_tests:none_such")
    assert code == 1
    assert err.startswith("Traceback")


def test_python_gets_exceptions():
    """No hook, no SystemExit where a program asks ParlAI for options."""
    from parlai.scripts.train_model import TrainModel

    before = sys.excepthook
    with pytest.raises(ValueError, match="invalid choice: 'all'"):
        TrainModel.setup_args().parse_kwargs(model="biencoder", task="selection:sample", candidates="all")
    assert sys.excepthook is before


def test_programs_that_set_arguments_for_parlai_keep_their_errors(monkeypatch):
    """benchmarks.reproduce does so: it is not ParlAI's command, whatever `sys.argv` says."""
    from parlai.scripts.train_model import TrainModel

    words = ["-m", "biencoder", "-t", "selection:sample"]
    monkeypatch.setattr(sys, "argv", ["parlai", *words])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)  # started as a script, such as bin/pytest
    before, parser = sys.excepthook, TrainModel.setup_args()
    parser.add_extra_args(words)
    assert sys.excepthook is before
    assert "error" not in vars(parser)


@pytest.mark.parametrize(
    ("spec", "file", "program"),
    [
        (None, "/usr/bin/parlai", "parlai"),
        (ModuleSpec("parlai.__main__", None), "parlai/__main__.py", "parlai.__main__"),
        (None, None, ""),  # an interactive session
    ],
)
def test_the_program_is_the_main_module_or_script(monkeypatch, spec, file, program):
    main = ModuleType("__main__")
    main.__spec__, main.__file__ = spec, file
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert console._get_program() == program


def test_a_module_says_what_it_has_not():
    module = importlib.import_module("parlai.tasks.selection.agents")
    assert not hasattr(module, "something")
    with pytest.raises(ConfigError, match="there are amazonqa, convai2,"):
        module.ConvaiTeacher  # noqa: B018


@pytest.mark.parametrize("script", ["multiprocessing_train", "multiprocessing_eval"])
def test_several_processes_without_a_gpu_are_told_the_launcher(script, command, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = command(f"{script} -m biencoder -t selection:sample -mf nowhere/model")
    assert code == 1
    assert err.startswith("error: ParlAI's commands for several processes need GPUs, and there is none")
    assert "torchrun --nproc-per-node N -m parlai.agents.ranker.launch" in err
    assert len(err.splitlines()) == 1


@pytest.mark.long
def test_what_display_model_advises_works(command, tmp_path):
    """For a file without candidates, each error names something that the next command can do."""
    lines = [{"dialog": [[{"id": "a", "text": f"say {n}"}, {"id": "b", "text": f"it is {n}"}]]} for n in range(8)]
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "replies.txt").write_text("".join(f"it is {n}\n" for n in range(8)))
    data = f"-t jsonfile --jsonfile-datapath {tmp_path}/my.jsonl --jsonfile-datatype-extension false -mf {tmp_path}/m"
    code, out, err = command(f"train_model -m biencoder {data} {TINY} --eval-candidates batch -bs 4 --num-epochs 1")
    assert code == 0, out + err
    display = f"display_model {data} -n 2"
    *_, error = command(display)
    assert "use --eval-candidates fixed with --fixed-candidates-path FILE" in error
    *_, error = command(f"{display} --eval-candidates batch")
    assert "give --eval-candidates fixed and --fixed-candidates-path FILE or, in eval_model, --batchsize 2" in error
    code, out, _ = command(f"{display} --eval-candidates fixed --fixed-candidates-path {tmp_path}/replies.txt")
    assert code == 0
    assert out.count("model: it is ") == 2
    assert "inline candidates" not in out
