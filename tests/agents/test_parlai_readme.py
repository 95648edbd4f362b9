"""The commands of ParlAI's `projects/polyencoder/README.md`: as they stand there, with small models and small data.

What is other: the models (`-m polyencoder` for `-m transformer/polyencoder`), the zoo's pre-trained ones and their
sizes, `--num-epochs`, and the places of files.
"""

from __future__ import annotations

import io
import json

import pytest
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainModel

from polyencoder.checkpoint import read_model_file
from polyencoder.errors import InputError
from tests.task_files import dialogue, make_datapath, write

pytestmark = pytest.mark.slow

COMMON = (
    "--eval-batchsize 6 --lr-scheduler-patience 0 --lr-scheduler-decay 0.4 -lr 5e-05 --data-parallel True "
    "--history-size 20 --label-truncate 72 --text-truncate 360 --num-epochs 1.0 --max_train_time 200000 -veps 0.5 "
    "-vme 8000 --validation-metric accuracy --validation-metric-mode max --save-after-valid True --log_every_n_secs 20 "
    "--dict-tokenizer bpe --dict-lower True --optimizer adamax --output-scaling 0.06 --variant xlm "
    "--share-encoders False --learn-positional-embeddings True --n-layers 2 --n-heads 2 --ffn-size 64 "
    "--attention-dropout 0.1 --relu-dropout 0.0 --dropout 0.1 --n-positions 512 --embedding-size 32 "
    "--activation gelu --embeddings-scale False "
    "--n-segments 2 --learn-embeddings True --dict-endtoken __start__ --fp16 True"
)
BI = "--batchsize 512 --warmup_updates 100 --candidates batch --reduction-type mean --share-word-embeddings False"
POLY = "--batchsize 256 --warmup_updates 100 --candidates batch --reduction-type mean --polyencoder-type codes "
POLY += "--poly-n-codes 64 --poly-attention-type basic"
CROSS = "--batchsize 16 --warmup_updates 1000 --candidates inline --reduction-type first"
COMMANDS = {"biencoder": BI, "polyencoder": POLY, "crossencoder": CROSS}


@pytest.fixture(scope="module")
def datapath(tmp_path_factory):
    path = make_datapath(tmp_path_factory.mktemp("data"))
    sampled = [dialogue(number, options=20) for number in range(12)]
    write(path / "dstc7" / "ubuntu_train_subtask_1_sampled.json", json.dumps(sampled))
    return path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory, datapath):
    """(model) -> the file of a model that ParlAI's own agent of this kind wrote, as those of its zoo were."""
    made = {}

    def make(model):
        if model not in made:
            path = tmp_path_factory.mktemp(model) / "model"
            own = COMMANDS[model].replace("--candidates batch", "--candidates inline")  # one step is enough
            own += " --batchsize 2 --max-train-steps 1 --lr-scheduler none"
            command = f"-m transformer/{model} -t convai2 {COMMON} {own}"
            command = command.replace("--data-parallel True", "").replace("--fp16 True", "--dict-maxtokens 200")
            TrainModel.main(*f"{command} -mf {path} --datapath {datapath} --loglevel error".split())
            made[model] = path
        return made[model]

    return make


@pytest.fixture
def fine_tune(pretrained, datapath, tmp_path):
    """(model, task) -> the validation's report of the README's command."""

    def run(model, task):
        files = f"--init-model {pretrained(model)} -mf {tmp_path / 'model'} --datapath {datapath} --loglevel error"
        valid, _ = TrainModel.main(*f"{files} -t {task} -m {model} {COMMON} {COMMANDS[model]}".split())
        return valid

    return run


@pytest.mark.parametrize(
    ("model", "task"),
    [
        *((model, "convai2") for model in COMMANDS),
        ("polyencoder", "dstc7:DSTC7TeacherAugmentedSampled"),
        ("biencoder", "ubuntu"),
        ("crossencoder", "ubuntu"),
    ],
)
def test_fine_tuning(model, task, fine_tune, tmp_path):
    if (model, task) == ("crossencoder", "ubuntu"):
        with pytest.raises(InputError, match="which --candidates inline needs; .*-t selection:ubuntu"):
            fine_tune(model, task)
        task = "selection:ubuntu"
    report = fine_tune(model, task)
    assert report["exs"].value() > 0
    assert 0 <= report["accuracy"].value() < 1
    config, _ = read_model_file(tmp_path / "model")
    assert (config.output_scaling, config.backbone["hidden_dropout_prob"]) == (0.06, 0.1)
    assert config.reduction == ("first" if model == "crossencoder" else "mean")


def test_interacting_with_a_pretrained_model(pretrained, tmp_path, monkeypatch, capsys):
    replies = tmp_path / "convai_trainset_cands.txt"
    replies.write_text("i like tea .\ni like the sea .\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("your persona: i love tea.\\nhi how are you doing ?\n[EXIT]\n"))
    command = f"-m polyencoder -mf {pretrained('polyencoder')} --encode-candidate-vecs true --eval-candidates fixed"
    Interactive.main(*f"{command} --fixed-candidates-path {replies} --loglevel error".split())
    said = capsys.readouterr().out
    assert "i like tea ." in said or "i like the sea ." in said
