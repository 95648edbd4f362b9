"""The model inside an agent: read safely, built from a pre-trained encoder, trained with every option."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from polyencoder import Ranker
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint
from polyencoder.errors import CheckpointError, ConfigError
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

MODELS = ["biencoder", "polyencoder", "crossencoder"]
TEXTS = ["hello", "how are you ?", "bye"]
TURNS = [{"text": text, "label_candidates": [f"{other} too" for other in TEXTS]} for text in TEXTS]


@pytest.fixture
def learn(respond):
    """(agent) -> the names of the parameters that one training step has changed; evaluation after it works."""

    def run(agent) -> set[str]:
        before = {name: tensor.detach().clone() for name, tensor in agent.model.named_parameters()}
        respond(agent, *[{**turn, "labels": [f"{turn['text']} too"]} for turn in TURNS])
        assert 0 < agent.global_metrics.report()["mean_loss"].value() < 50
        replies = respond(agent, *[{**turn, "eval_labels": [f"{turn['text']} too"]} for turn in TURNS])
        assert all(1 <= reply["metrics"]["rank"].value() <= 3 for reply in replies)
        return {name for name, tensor in agent.model.named_parameters() if not torch.equal(tensor, before[name])}

    return run


# ---- options, one training step with each


@mostly_long("model", MODELS, quick=1)
@pytest.mark.parametrize(
    ("fine_tuned", "expected"),
    [
        ("all", {"embeddings", "layer.0", "layer.1", "layer.2", "layer.3", "layer.4"}),
        ("all_encoder_layers", {"layer.0", "layer.1", "layer.2", "layer.3", "layer.4"}),
        ("top4_layers", {"layer.1", "layer.2", "layer.3", "layer.4"}),
        ("top_layer", {"layer.4"}),
    ],
)
def test_type_optimization(model, fine_tuned, expected, make_agent, learn):
    agent = make_agent(model, type_optimization=fine_tuned, n_layers=5, learningrate=1e-2, warmup_updates=-1)
    changed = learn(agent)
    parts = ["embeddings", *[f"layer.{i}" for i in range(5)]]
    assert {part for part in parts if any(f".{part}." in name for name in changed)} == expected
    head = {name for name, _ in agent.model.named_parameters() if not any(f".{part}." in name for part in parts)}
    assert head <= changed  # codes and the last layer of a cross-encoder always learn
    assert len(head) == {"biencoder": 0, "polyencoder": 1, "crossencoder": 2}[model]


@pytest.mark.parametrize("model", ["biencoder", "polyencoder"])
def test_freeze_candidates(model, make_agent, learn):
    agent = make_agent(
        model, freeze_candidates=True, type_optimization="all", learningrate=1e-2, warmup_updates=-1, dropout=0.5
    )
    before = compute_candidate_fingerprint(agent.ranker, agent.dict.text)
    assert learn(agent)
    assert compute_candidate_fingerprint(agent.ranker, agent.dict.text) == before
    with pytest.raises(ConfigError, match="which --freeze-candidates keeps: set a number"):
        make_agent(model, freeze_candidates=True, output_scaling="auto")


@pytest.mark.parametrize("model", ["biencoder", "polyencoder"])
def test_shared_encoders(model, make_agent, learn):
    agent = make_agent(model, share_encoders=True)
    assert learn(agent)
    assert agent.ranker.candidate_tower is agent.ranker.context_tower
    apart = make_agent(model, share_encoders=False)
    assert sum(p.numel() for p in apart.model.parameters()) > 1.5 * sum(p.numel() for p in agent.model.parameters())


@pytest.mark.parametrize("model", MODELS)
def test_half_precision_is_single_on_a_cpu(model, make_agent, learn):
    agent = make_agent(model, fp16=True)
    assert learn(agent)
    assert {parameter.dtype for parameter in agent.model.parameters()} == {torch.float32}


# ---- a pre-trained encoder


@pytest.mark.parametrize("model", MODELS)
def test_a_pretrained_encoder(model, backbone_folder, make_agent, learn, tmp_path):
    options = {"text_truncate": 24, "label_truncate": 12, "learningrate": 1e-2, "warmup_updates": -1}
    options |= {"backbone": str(backbone_folder("bert")), "dict_file": str(tmp_path / "bert.dict")}
    agent = make_agent(model, **options)
    tower = agent.ranker.tower if model == "crossencoder" else agent.ranker.context_tower
    from transformers import AutoModel

    weights = AutoModel.from_pretrained(backbone_folder("bert")).state_dict()
    for name, tensor in tower.model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    changed = learn(agent)
    assert not any("embeddings" in name for name in changed)  # by default they do not learn
    agent.save(str(tmp_path / "saved"))
    again = make_agent(model, model_file=tmp_path / "saved")
    assert again.ranker.config == agent.ranker.config
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, agent.model.state_dict()[name])


def test_a_trained_reranker(make_reranker, make_agent, learn, tmp_path):
    """Begins with its scores, learns its hidden layer too, and is saved with it."""
    folder = make_reranker("xlm-roberta")
    options = {"learningrate": 1e-2, "warmup_updates": -1, "text_truncate": 16, "label_truncate": 64}
    options |= {"backbone": str(folder), "dict_file": str(tmp_path / "xlm.dict"), "history_size": 20}
    agent = make_agent("crossencoder", **options)
    expected, texts = Ranker.load(folder, device="cpu"), (["how are you ?"], ["i am fine .", "two dogs"])
    changes = {"backbone": agent.ranker.config.backbone}  # with the dropout of the tests
    assert agent.ranker.config == replace(expected.model.config, **changes)
    ours = Ranker(agent.ranker, agent.dict.text, device="cpu")
    torch.testing.assert_close(torch.as_tensor(ours.score(*texts)), torch.as_tensor(expected.score(*texts)))
    assert {"dense.0.weight", "linear.weight"} <= {name.removeprefix("module.") for name in learn(agent)}
    agent.save(str(tmp_path / "saved"))
    again = make_agent("crossencoder", model_file=tmp_path / "saved")
    assert again.ranker.config == agent.ranker.config
    assert torch.equal(again.ranker.dense[0].weight, agent.ranker.dense[0].weight)


@pytest.mark.parametrize("name", ["no/such-model", "/no/such/folder"])
def test_an_unknown_backbone(name, make_agent, tmp_path):
    with pytest.raises(ConfigError, match=f"^backbone {name}: ") as error:
        make_agent("biencoder", backbone=name, dict_file=str(tmp_path / "new.dict"))
    assert len(str(error.value).splitlines()) == 1


# ---- files that are no checkpoints


@pytest.fixture
def path(dictionary, tmp_path):
    """Where a bad model file is to be written: the tokenizer that a good one has is there."""
    shutil.copy(f"{dictionary.removesuffix('.dict')}.tokenizer.json", tmp_path / "model.tokenizer.json")
    return tmp_path / "model"


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("flag", ["model_file", "init_model"])
def test_a_pickle_never_runs(protocol, flag, malicious_pickle, make_agent, path):
    content, witness = malicious_pickle(protocol)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a file of weights that can be read safely"):
        make_agent("biencoder", **{flag: str(path)})
    assert not witness.exists()


def test_a_pickle_inside_a_checkpoint_never_runs(trained, malicious, make_agent, path):
    writes, witness = malicious
    states = torch.load(trained("biencoder")[0], weights_only=True)
    torch.save({**states, "model": writes}, path)
    with pytest.raises(CheckpointError, match="not a file of weights that can be read safely"):
        make_agent("biencoder", init_model=str(path))
    assert not witness.exists()


def write_cut(path, source) -> None:
    path.write_bytes(source.read_bytes()[:2000])


def write_foreign(path, source) -> None:
    torch.save({"model": {"weight": torch.zeros(2)}}, path)


def write_safetensors(path, source) -> None:
    save_file({"weight": torch.zeros(2)}, path)


def write_misfit(path, source) -> None:
    states = torch.load(source, weights_only=True)
    del states["model"]["context_tower.model.embeddings.word_embeddings.weight"]
    torch.save(states, path)


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (write_cut, "damaged, or not a file of weights that can be read safely"),
        (write_safetensors, "looks like weights alone: give the folder that they are in"),
        (write_foreign, "not a model file of biencoder, polyencoder or crossencoder"),
        (write_misfit, "the weights do not fit the model: context_tower.model.embeddings.word_embeddings.weight is"),
    ],
)
def test_a_model_file_that_is_none(write, problem, trained, make_agent, path):
    write(path, trained("biencoder")[0])
    with pytest.raises(CheckpointError) as error:
        make_agent("biencoder", model_file=path, text_truncate=48, label_truncate=16)
    assert str(error.value).startswith(f"{path}: {problem}")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("flag", ["model_file", "init_model"])
def test_a_model_file_without_its_tokenizer(flag, trained, make_agent, tmp_path):
    shutil.copy(trained("biencoder")[0], tmp_path / "alone")
    with pytest.raises(CheckpointError, match=r"alone: there is no alone\.tokenizer\.json beside it"):
        make_agent("biencoder", **{flag: str(tmp_path / "alone")})
