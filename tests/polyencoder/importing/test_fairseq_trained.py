"""fairseq itself trains masked language models; imported, their token ids and outputs are fairseq's own.

One is trained by the commands of docs/pretraining.md, the others by the same ones on text of other encodings.
"""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from polyencoder.errors import CheckpointError
from polyencoder.modeling.backbone import Backbone
from polyencoder.modeling.loading import load_pretrained, load_tokenizer
from tests.commands import command_fails, run_command
from tests.docs.snippets import commands, read_snippets
from tests.polyencoder.importing.fairseq_texts import ids_of, words_of

pytestmark = pytest.mark.long

DOCUMENT = Path(__file__).parents[3] / "docs" / "pretraining.md"
# Behind the document's own flags, of which the last counts
SMALL = (
    "--encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 2 --batch-size 8 "
    "--tokens-per-sample 64 --warmup-updates 5 --total-num-update 60 --max-update 60 --log-format none "
    "--required-batch-size-multiple 1"  # else a last batch of fewer than 8 is dropped
)
KINDS = ["gpt2", "fastbpe", "subword_nmt"]
# Each command in a process of its own, forked from one that has imported fairseq, and what its training imports later.
# It ends without taking all of that down.
DRIVER = """if True:
    import gc, json, os, sys
    import hydra.experimental, torch._dynamo
    from fairseq_cli import preprocess, train
    from subword_nmt import subword_nmt

    gc.freeze()

    mains = {"subword-nmt": subword_nmt.main}
    mains |= {"fairseq-preprocess": preprocess.cli_main, "fairseq-train": train.cli_main}
    for command in json.load(sys.stdin):
        if (child := os.fork()) == 0:
            sys.argv = command
            mains[command[0]]()
            sys.stdout.flush()
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"failed: {command}")
"""
WORDS = "where what when is are the your my cat dog house garden school ? , . today now here there it's don't we you"
TEXTS = st.text(st.sampled_from([*"abdehlnorstuw '.,?!I</@", "\t", "\n", "ß", "é", "\U0001f600"]), max_size=40)


def draw_lines(n: int) -> list[str]:
    """Lines in which some words follow others more often than by chance."""
    drawn, words = random.Random(0), WORDS.split()
    starts = [drawn.randrange(len(words)) for _ in range(n)]
    positions = [[start + step * drawn.choice([1, 1, 4]) for step in range(9)] for start in starts]
    return [" ".join(words[position % len(words)] for position in line) for line in positions]


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def installed():
    """Imported by these tests alone: it takes seconds, and every process collects this file."""
    pytest.importorskip("fairseq", reason="no fairseq: its wheel is for Python 3.11 on Linux (Makefile)")
    pytest.importorskip("subword_nmt")


class Encoder(NamedTuple):
    theirs: Any
    """fairseq's own, with `encode`."""
    flags: list[object]
    """The flags of `polyencoder import` for the same files."""


@pytest.fixture(scope="module")
def encoders(tmp_path_factory) -> dict[str, Encoder]:
    """Encoders of small files, trained on the lines."""
    from fairseq.data.encoders import build_bpe
    from subword_nmt.learn_bpe import learn_bpe

    folder, lines = tmp_path_factory.mktemp("encoders"), draw_lines(300)
    codes, gpt2 = io.StringIO(), ByteLevelBPETokenizer()
    learn_bpe([f"{line}\n" for line in lines], codes, 60)
    write_lines(folder / "codes", codes.getvalue().splitlines())
    write_lines(folder / "fast", [f"{merge} {99 - n}" for n, merge in enumerate(codes.getvalue().splitlines()[1:])])
    gpt2.train_from_iterator(lines, vocab_size=300, show_progress=False)
    gpt2.save_model(str(folder))

    def encoder(bpe: str, *flags: str, **files: str) -> Encoder:
        settings = Namespace(bpe=bpe, bpe_separator="@@", **{name: str(folder / file) for name, file in files.items()})
        return Encoder(build_bpe(settings), [flag if flag.startswith("-") else folder / flag for flag in flags])

    files = {"gpt2_encoder_json": "vocab.json", "gpt2_vocab_bpe": "merges.txt"}
    return {
        "gpt2": encoder("gpt2", "--encoder-json", "vocab.json", "--vocab-bpe", "merges.txt", **files),
        "fastbpe": encoder("subword_nmt", "--codes", "fast", bpe_codes="codes"),  # the same merges
        "subword_nmt": encoder("subword_nmt", "--codes", "codes", bpe_codes="codes"),
    }


@pytest.fixture(scope="module")
def documented() -> list[list[str]]:
    """The commands of the document's block with fairseq, as words."""
    (snippet,) = [snippet for snippet in read_snippets(DOCUMENT) if "fairseq-train" in snippet.text]
    return [list(command.arguments) for command in commands(snippet, {}, DOCUMENT.parent)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, documented, encoders) -> Path:
    """A folder in which the document's commands were run, up to the import, and the same with each encoding."""
    folder, lines = tmp_path_factory.mktemp("fairseq"), draw_lines(300)
    write_lines(folder / "text.txt", lines)
    write_lines(folder / "valid.txt", lines[:40])
    training_commands = [command for command in documented if command[0] != "polyencoder"]
    run = [[*command, *(SMALL.split() if command[0] == "fairseq-train" else [])] for command in training_commands]
    (train,) = [command for command in run if command[0] == "fairseq-train"]
    for kind, encoder in encoders.items():
        write_lines(folder / f"{kind}.txt", [encoder.theirs.encode(line) for line in lines])
        text = f"--only-source --trainpref {kind}.txt --validpref {kind}.txt --destdir {kind}"
        run.append(["fairseq-preprocess", *text.split()])
        run.append(["fairseq-train", kind, *train[2:], "--save-dir", kind, "--max-update", "3"])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    driver = [sys.executable, "-c", DRIVER]
    done = subprocess.run(
        driver, input=json.dumps(run), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


class Model(NamedTuple):
    kind: str
    theirs: Any
    """fairseq's, with `encode` and `extract_features`."""
    ours: Backbone
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return self.kind  # hypothesis shows it


def load(checkpoint: Path, data: Path, encoder: Encoder, out: Path) -> Model:
    """A checkpoint as fairseq loads it, and imported."""
    from fairseq.checkpoint_utils import load_model_ensemble_and_task
    from fairseq.models.roberta import RobertaHubInterface

    output = run_command("import", checkpoint, out, "--dictionary", data / "dict.txt", *encoder.flags).stdout
    assert "an encoder that fairseq trained, roberta, 2 layers, 32 dimensions" in output
    with torch.serialization.safe_globals([Namespace]):  # fairseq calls torch.load as before torch 2.6
        (network,), _, task = load_model_ensemble_and_task([str(checkpoint)], arg_overrides={"data": str(data)})
    theirs = RobertaHubInterface(Namespace(bpe=Namespace(bpe=None)), task, network).eval()
    theirs.bpe = encoder.theirs
    return Model(data.name, theirs, load_pretrained(out).eval(), load_tokenizer(out)[0])


@torch.no_grad()
def assert_equal_outputs(model: Model, padded: Any) -> None:
    batch = padded([model.theirs.encode(line).tolist() for line in [*draw_lines(3), "is"]], pad_id=1)
    expected = model.theirs.extract_features(batch.ids)[batch.mask]
    torch.testing.assert_close(model.ours(batch)[batch.mask], expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1


@pytest.fixture(scope="module", params=KINDS)
def model(request, workspace, encoders, tmp_path_factory) -> Model:
    data = workspace / request.param
    return load(data / "checkpoint_last.pt", data, encoders[request.param], tmp_path_factory.mktemp("out") / "encoder")


@given(TEXTS)
def test_ids_are_fairseqs(model, text):
    theirs = model.theirs.encode(text if model.kind == "gpt2" else words_of(text)).tolist()
    size = len(model.theirs.task.source_dictionary)
    assert [0, *ids_of(model.tokenizer, text, size=size), 2] == theirs
    assert model.tokenizer.encode(text).ids[:: len(theirs) - 1] == [0, 2]


def test_outputs_are_fairseqs(model, padded):
    assert_equal_outputs(model, padded)


def test_an_older_checkpoint(workspace, encoders, tmp_path, padded):
    """`args` instead of `cfg`, the encoder named a decoder, fused projections: fairseq upgrades it when it loads it."""
    data = workspace / "subword_nmt"
    states = torch.load(data / "checkpoint_last.pt", weights_only=False)
    weights = states.pop("model")
    state = {}
    for name, tensor in weights.items():
        if "q_proj" in name:
            parts = [weights[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            state[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif "k_proj" not in name and "v_proj" not in name:
            state[name.replace("layernorm_embedding", "emb_layer_norm")] = tensor
    state = {name.replace("encoder.", "decoder.", 1): tensor for name, tensor in state.items()}
    torch.save(states | {"cfg": None, "args": states["cfg"]["model"], "model": state}, tmp_path / "old.pt")
    assert_equal_outputs(load(tmp_path / "old.pt", data, encoders["subword_nmt"], tmp_path / "out"), padded)


def test_the_documents_commands_end_with_a_ranker(workspace, documented, monkeypatch):
    imported, trained = (command[1:] for command in documented if command[0] == "polyencoder")
    monkeypatch.chdir(workspace)
    pairs = [json.dumps({"context": [line], "response": response}) for line, response in pairwise(draw_lines(24))]
    for split in ("train", "valid"):
        write_lines(workspace / "my" / f"{split}.jsonl", pairs)
    assert "an encoder that fairseq trained" in run_command(*imported).stdout
    run_command(*trained, "--max-updates", "2", "--batch-size", "4")
    assert (workspace / "runs" / "ranker" / "polyencoder.json").exists()


def test_what_is_of_another_model(workspace, encoders, tmp_path):
    data, out = workspace / "subword_nmt", tmp_path / "out"
    checkpoint = data / "checkpoint_last.pt"
    states = torch.load(checkpoint, weights_only=False)
    states["model"] = {name.replace("sentence_encoder.", ""): tensor for name, tensor in states["model"].items()}
    torch.save(states, tmp_path / "translation.pt")
    dictionary, codes = ["--dictionary", data / "dict.txt"], encoders["subword_nmt"].flags
    other_dictionary = ["--dictionary", workspace / "gpt2" / "dict.txt"]
    refused = [
        (r"translation\.pt: not a RoBERTa of fairseq", tmp_path / "translation.pt", [*dictionary, *codes]),
        (r"dict\.txt: gives \d+ tokens .* embeds \d+", checkpoint, [*other_dictionary, *codes]),
        (r"dict\.txt: .* are not of .*vocab\.json", checkpoint, [*dictionary, *encoders["gpt2"].flags]),
    ]
    for message, file, flags in refused:
        command_fails(CheckpointError, message, "import", file, out, *flags)
    assert not out.exists()
