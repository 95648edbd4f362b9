"""`zoo:polyencoder/NAME/model` in ParlAI's own commands, with a small archive of the official one's layout."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import shlex
from functools import partial
from pathlib import Path

import parlai.utils.logging as logging
import parlai.zoo.polyencoder.models as zoo
import pytest
import torch
from parlai.core.agents import create_agent_from_model_file
from parlai.core.build_data import built, mark_done, modelzoo_path
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.train_model import TrainModel
from transformers import BertConfig, BertModel

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.hub.zoo import get_zoo_model, read_zoo_models
from polyencoder.importing import import_parlai
from polyencoder.ranker import Ranker
from tests.model_folders import files_of

pytestmark = pytest.mark.slow

torch.set_num_threads(1)

NAME = "zoo:polyencoder/convai2_poly/model"
ANIMALS = ["cat", "dog", "cow", "hen"]
TRAINING = {"embedding_size": 16, "ffn_size": 32, "n_layers": 1, "n_heads": 2, "n_positions": 64, "n_segments": 2}
TRAINING |= {"variant": "xlm", "activation": "gelu", "learn_positional_embeddings": True, "embeddings_scale": False}
TRAINING |= {"share_encoders": False, "output_scaling": 0.5, "poly_n_codes": 3, "reduction_type": "mean"}
TRAINING |= {"text_truncate": 30, "label_truncate": 8, "dict_maxtokens": 60, "dict_lower": True}
TRAINING |= {"dict_tokenizer": "bpe"}
TRAINING |= {"lr_scheduler": "none", "optimizer": "adam", "learningrate": 1e-2, "batchsize": 4, "max_train_steps": 4}
TRAINING |= {"candidates": "inline", "eval_candidates": "inline", "short_final_eval": True, "validation_max_exs": 4}
TRAINING |= {"force_fp16_tokens": True}  # the dictionary's padding, which the official models have too


@pytest.fixture(autouse=True)
def _calm():
    logging.logger.setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Options of a task that is small and needs no download."""
    folder = tmp_path_factory.mktemp("task")
    candidates = "|".join(f"my {animal} is here ." for animal in ANIMALS)
    end = f"label_candidates:{candidates}\tepisode_done:True\n"
    lines = [f"text:where is the {animal} ?\tlabels:my {animal} is here .\t{end}" for animal in ANIMALS]
    for part in ("train", "valid", "test"):
        (folder / f"task_{part}.txt").write_text("".join(lines))
    path = str(folder / "task")
    return {"task": "fromfile", "fromfile_datapath": path, "fromfile_datatype_extension": True, "loglevel": "error"}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, task):
    """The file of a poly-encoder that ParlAI's own agent trained; its options name several GPUs, as the official do."""
    path = tmp_path_factory.mktemp("theirs") / "model"
    torch.manual_seed(0)
    TrainModel.main(model="transformer/polyencoder", model_file=str(path), seed=1, **TRAINING, **task)
    opt = json.loads(Path(f"{path}.opt").read_text())
    Path(f"{path}.opt").write_text(json.dumps(opt | {"data_parallel": True, "fp16": True}))
    return path


@pytest.fixture(scope="module")
def archive(theirs, pack):
    """The official archive in miniature, with one of its models and a file beside them."""
    members = {f"model_poly/{file.name}": file.read_bytes() for file in theirs.parent.iterdir()}
    return pack(members | {"convai_trainset_cands.txt": b"hello\n"})


@pytest.fixture
def published(server, archive, monkeypatch):
    """(archive=the good one, sha256=None) -> the server, which has the archive from then on."""

    def publish(data: bytes = archive, *, sha256: str | None = None):
        server.files["/models.tgz"] = data
        model = get_zoo_model("convai2_poly")
        model = dataclasses.replace(
            model, source=dataclasses.replace(model.source, url=server.url("/models.tgz"), sha256=sha256)
        )
        module = importlib.import_module("parlai.zoo.polyencoder.convai2_poly")
        monkeypatch.setattr(module, "download", partial(zoo.prepare, model))
        return server

    return publish


def numbers(report):
    return {name: float(report[name]) for name in ("hits@1", "mrr", "loss")}


def test_evaluation_by_name(published, theirs, task, tmp_path, tree):
    server = published()
    options = {"datatype": "valid", "batchsize": 4, **task}
    expected = numbers(EvalModel.main(model_file=str(theirs), data_parallel=False, **options))
    for more in ({"model": "polyencoder"}, {}):  # the second start finds it there, and what kind of model it is
        report = numbers(EvalModel.main(model_file=NAME, datapath=str(tmp_path), **more, **options))
        assert report == pytest.approx(expected, abs=1e-4)
    assert server.requests == [None]
    official = [f"models/pretrained_transformers/model_poly/{file.name}" for file in theirs.parent.iterdir()]
    official += [f"models/pretrained_transformers/{name}" for name in (".built", "convai_trainset_cands.txt")]
    saved = Ranker.from_pretrained(tmp_path / "models/polyencoder/convai2_poly", device="cpu").model
    files = files_of(saved, "model", "model.dict", "model.opt", "model.tokenizer.json")
    assert tree(tmp_path) == sorted([*official, *(f"models/polyencoder/convai2_poly/{file}" for file in files)])
    assert built(str(tmp_path / "models/pretrained_transformers"), "v3.0")  # for zoo:pretrained_transformers/ too


def test_the_library_reads_both_forms(published, theirs, tmp_path):
    published()
    file = Path(modelzoo_path(str(tmp_path), NAME))
    labels = [f"my {animal} is here ." for animal in ANIMALS]
    expected = torch.as_tensor(Ranker(*import_parlai(theirs), device="cpu").score(["where is the cow ?"], labels))
    for form in (file, file.parent):
        torch.testing.assert_close(
            torch.as_tensor(Ranker.from_pretrained(form, device="cpu").score(["where is the cow ?"], labels)), expected
        )


def test_fine_tuning_by_name(published, task, tmp_path):
    published()
    options = {"init_model": NAME, "datapath": str(tmp_path), "model": "polyencoder", "poly_n_codes": 3}
    options |= {"num_epochs": 1.0, "batchsize": 4, "text_truncate": 30, "label_truncate": 8}
    TrainModel.main(model_file=str(tmp_path / "new"), **options, **task)
    source = Ranker.from_pretrained(tmp_path / "models/polyencoder/convai2_poly").model.state_dict()
    tuned = Ranker.from_pretrained(tmp_path / "new").model.state_dict()
    assert tuned.keys() == source.keys()
    assert all((tuned[name] - source[name]).abs().max() < 0.1 for name in source)


def test_what_parlai_downloaded_is_used(published, theirs, tmp_path):
    server = published()
    folder = tmp_path / "models/pretrained_transformers/model_poly"
    folder.mkdir(parents=True)
    for file in theirs.parent.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    mark_done(str(folder.parent), "v3.0")
    create_agent_from_model_file(modelzoo_path(str(tmp_path), NAME))
    assert server.requests == []


THEIRS = "zoo:pretrained_transformers/model_poly/model"


@pytest.fixture
def parlais_archive(server, monkeypatch):
    """(archive) -> the server, with the archive at the address of ParlAI's own models."""

    def publish(data: bytes | None):
        if data is not None:
            server.files["/models.tgz"] = data
        model = get_zoo_model("convai2_poly")
        source = dataclasses.replace(model.source, url=server.url("/models.tgz"), sha256=None)
        monkeypatch.setattr(zoo, "read_zoo_models", lambda: {"one": dataclasses.replace(model, source=source)})
        return server

    return publish


def test_parlais_own_names_are_downloaded_as_ours(parlais_archive, archive, task, tmp_path):
    server = parlais_archive(archive)
    options = {"init_model": THEIRS, "datapath": str(tmp_path), "model": "polyencoder", "poly_n_codes": 3}
    TrainModel.setup_args().parse_kwargs(**options, **task)
    assert server.requests == [None]
    assert (tmp_path / "models/pretrained_transformers/model_poly/model").is_file()


def test_parlais_own_names_without_a_network(parlais_archive, archive, task, tmp_path):
    """In one line, with the address, and the folder where a copy is found, which then is."""
    url = parlais_archive(None).url("/models.tgz")
    parse = partial(TrainModel.setup_args().parse_kwargs, init_model=THEIRS, model="polyencoder", **task)
    with pytest.raises(CheckpointError) as error:
        parse(datapath=str(tmp_path))
    folder = tmp_path / "models/pretrained_transformers"
    assert all(part in str(error.value) for part in (url, str(folder), ".built", "v3.0"))
    assert "\n" not in str(error.value)
    (folder / "model_poly").mkdir(parents=True)
    (folder / ".built").write_text("by hand\nv3.0")
    TrainModel.setup_args().parse_kwargs(init_model=THEIRS, model="polyencoder", datapath=str(tmp_path), **task)


def test_options_that_parlai_unpacked_are_looked_at(published, theirs, malicious_pickle, tmp_path):
    published()
    content, witness = malicious_pickle(4)
    folder = tmp_path / "models/pretrained_transformers/model_poly"
    folder.mkdir(parents=True)
    for file in theirs.parent.iterdir():
        (folder / file.name).write_bytes(content if file.suffix == ".opt" else file.read_bytes())
    mark_done(str(folder.parent), "v3.0")
    with pytest.raises(CheckpointError, match=r"model\.opt: not valid JSON"):
        modelzoo_path(str(tmp_path), NAME)
    assert not witness.exists()


def test_two_processes_that_need_one_model(published, tmp_path):
    """One fetches and converts it, the other waits for it."""
    server = published()

    def need() -> None:
        raise SystemExit(not Path(modelzoo_path(str(tmp_path), NAME)).is_file())

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=need) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert server.requests == [None]
    assert Ranker.from_pretrained(tmp_path / "models/polyencoder/convai2_poly", device="cpu")


def test_interrupted_and_resumed(published, archive, tmp_path, tree):
    server = published(sha256=hashlib.sha256(archive).hexdigest())
    server.breaks = [1000] * 5
    with pytest.raises(CheckpointError, match="broke off 5 times"):
        modelzoo_path(str(tmp_path), NAME)
    assert tree(tmp_path) == [f"models/polyencoder/models.tgz.part{end}" for end in ("", ".json")]
    file = Path(modelzoo_path(str(tmp_path), NAME))
    assert server.requests[1:] == [f"bytes={count}000-" for count in range(1, 6)]
    assert file.is_file()
    assert not list(file.parents[1].glob("*.part*"))


def test_interrupted_while_it_converts(published, tmp_path, monkeypatch, tree):
    server = published()
    save = zoo.save_folder

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo, "save_folder", stop)
    with pytest.raises(KeyboardInterrupt):
        modelzoo_path(str(tmp_path), NAME)
    assert not any("polyencoder" in path for path in tree(tmp_path))
    monkeypatch.setattr(zoo, "save_folder", save)
    assert Path(modelzoo_path(str(tmp_path), NAME)).is_file()
    assert server.requests == [None]  # the archive was unpacked before


@pytest.mark.parametrize("kind", ["outside", "damaged", "another", "pickle"])
def test_archives_that_are_refused(kind, published, archive, pack, malicious_pickle, tmp_path, tree):
    content, witness = malicious_pickle(4)
    bad = {"outside": pack({"model_poly/model": b"1", "../../victim": b"evil"}), "damaged": archive[:-100]}
    bad["another"] = pack({"model_bi/model": b"1"})
    bad["pickle"] = pack({"model_poly/model": b"1", "model_poly/model.opt": b"{}", "model_bi/model.opt": content})
    published(bad[kind])
    message = {"outside": "outside the destination", "damaged": "damaged", "another": "model_poly/model: is missing"}
    message["pickle"] = "model_bi/model.opt: not valid JSON"
    with pytest.raises(CheckpointError, match=message[kind]):
        modelzoo_path(str(tmp_path), NAME)
    assert not witness.exists()
    assert not any("polyencoder" in path for path in tree(tmp_path))
    if kind != "another":
        assert tree(tmp_path) == []
        published()
        assert Path(modelzoo_path(str(tmp_path), NAME)).is_file()


def test_an_encoder_of_the_hub(make_hf_tokenizer, tmp_path, monkeypatch, no_network):
    folder = tmp_path / "encoder"  # stands for what huggingface_hub has in its cache
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**sizes, intermediate_size=32)).save_pretrained(folder)
    make_hf_tokenizer("bert").save_pretrained(folder)
    model = dataclasses.replace(get_zoo_model("minilm"), location=str(folder))
    module = importlib.import_module("parlai.zoo.polyencoder.minilm")
    monkeypatch.setattr(module, "download", partial(zoo.prepare, model))
    file = Path(modelzoo_path(str(tmp_path), "zoo:polyencoder/minilm/model"))
    texts = ["hello you"], ["a cat", "dogs"]
    expected = torch.as_tensor(Ranker.from_backbone(folder, "bi", reduction="mean", device="cpu").score(*texts))
    for form in (file, file.parent):
        torch.testing.assert_close(torch.as_tensor(Ranker.from_pretrained(form, device="cpu").score(*texts)), expected)


@pytest.mark.parametrize("path", ["reddit_pol/model", "reddit_poly"])
def test_unknown_names(path, tmp_path, no_network):
    with pytest.raises(ConfigError, match="write zoo:polyencoder/NAME/model with one of reddit_bi, reddit_poly,"):
        modelzoo_path(str(tmp_path), f"zoo:polyencoder/{path}")


@pytest.mark.parametrize("name", read_zoo_models())
def test_every_model_has_a_command_of_flags_that_exist(name, monkeypatch):
    prepared = []
    module = importlib.import_module(f"parlai.zoo.polyencoder.{name}")
    assert module.download.args == (get_zoo_model(name),)
    monkeypatch.setattr(module, "download", prepared.append)
    program, command, *arguments = shlex.split(get_zoo_model(name).command)
    script = {"train_model": TrainModel, "eval_model": EvalModel}[command]
    if command == "eval_model":  # the model's kind is in the file, which is not there
        arguments += ["-m", f"{get_zoo_model(name).architecture}encoder"]
    opt = script.setup_args().parse_args(arguments)
    assert program == "parlai"
    assert opt["task"] == "selection:convai2"
    modelzoo_path(opt["datapath"], opt["init_model"] or get_zoo_model(name).path)
    assert prepared
