"""A cross-encoder that adds its score to that of the ranker it started from."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch

from polyencoder.config import RankerConfig
from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.modeling.build import build_model
from polyencoder.modeling.cross import BASE_CONTEXTS
from polyencoder.modeling.transfer import transfer_weights
from polyencoder.ranker import Ranker
from polyencoder.settings.train import TrainSettings
from polyencoder.settings.training import ScheduleConfig
from polyencoder.training import train_ranker
from polyencoder.training.precision import Precision
from polyencoder.training.schedule import Schedule
from polyencoder.training.start import build_starting_ranker, build_untrained_ranker
from polyencoder.training.trainer import Trainer
from polyencoder.training.updates import OptimizerUpdates
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXTS = [["your persona: i ski .", "hi !", "do you like snow ?"], ["hello", "where is my money ?"], ["bye"]]
STARTS = {
    "bi": {"share_encoders": True, "reduction": "mean", "normalize": True, "output_scaling": 4.5},
    "poly": {"context_vectors": "turns"},
    "late": {"token_dim": 8},
}


@pytest.fixture(params=STARTS, ids=str)
def start(request, make_ranker, tmp_path):
    """A ranker with vectors and its folder."""
    ranker = make_ranker(request.param, **STARTS[request.param])
    ranker.model.config = ranker.model.completed(ranker.model.config, ranker.text)
    if request.param == "late":
        with torch.no_grad():
            ranker.model.term_weights.copy_(torch.tensor([1.0, 0.5, 0.25, 0.5, 0.25]))
    ranker.save_pretrained(tmp_path / "start")
    return Ranker.from_pretrained(tmp_path / "start", device="cpu"), tmp_path / "start"


def _trained(model):
    """The same model, whose own score is no longer 0."""
    model = copy.deepcopy(model)
    torch.nn.init.normal_(model.linear.weight)
    return model


def test_before_training_it_ranks_exactly_as_its_start(start, sentences):
    ranker, folder = start
    cross = Ranker.from_backbone(folder, "cross", device="cpu")
    expected = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    assert expected.std() > 0.01
    torch.testing.assert_close(torch.as_tensor(cross.score(CONTEXTS, sentences)), expected, rtol=1e-5, atol=1e-5)
    for context in CONTEXTS:
        hits, expected_hits = (source.rank(context, sentences) for source in (cross, ranker))
        assert [hit.text for hit in hits] == [hit.text for hit in expected_hits]
    contexts, texts = cross.text.batch_contexts(CONTEXTS), cross.text.batch_candidates(sentences)
    index = torch.tensor([[0, 3, -1], [2, 2, 1], [5, -1, -1]])
    with torch.no_grad():
        read = ranker.model.rescore(ranker.model.encode_context(contexts), ranker.model.read_candidates(texts))
        assert torch.equal(cross.model(contexts, texts), read)  # bit by bit
        gathered = read.gather(1, index.clamp(min=0)).masked_fill(index < 0, -torch.inf)
        torch.testing.assert_close(cross.model(contexts, texts, index), gathered, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("start", ["poly"], indirect=True)
def test_a_score_of_0_is_not_computed(start, sentences):
    cross = Ranker.from_backbone(start[1], "cross", device="cpu")
    read = []
    cross.model.tower.register_forward_hook(lambda *_: read.append(1))
    cross.score(CONTEXTS, sentences)
    assert not read
    cross.model.linear.bias.fill_(1)
    actual, expected = (torch.as_tensor(source.score(CONTEXTS, sentences)) for source in (cross, start[0]))
    torch.testing.assert_close(actual, expected + 1, rtol=0, atol=1e-4)
    assert read


@torch.no_grad()
@pytest.mark.parametrize("start", ["poly", "late"], indirect=True)
def test_many_contexts_with_own_candidates_are_not_all_compared(start, sentences, monkeypatch):
    """Evaluation scores thousands of contexts in one call."""
    ranker, folder = start
    model, base, seen = Ranker.from_backbone(folder, "cross", device="cpu").model, ranker.model, []
    rescore = type(base).rescore
    monkeypatch.setattr(
        type(base), "rescore", lambda self, contexts, read: seen.append(len(read)) or rescore(self, contexts, read)
    )
    texts = [f"{text} {number}" for number in range(8) for text in sentences]
    contexts, candidates = (
        ranker.text.batch_contexts([[text] for text in texts[:40]]),
        ranker.text.batch_candidates(texts),
    )
    index = torch.arange(40).unsqueeze(1) + torch.tensor([0, 7])
    scores = model(contexts, candidates, index)
    assert len(seen) == 3
    assert max(seen) <= 2 * BASE_CONTEXTS
    expected = rescore(base, base.encode_context(contexts), base.read_candidates(candidates)).gather(1, index)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("start", ["late", "poly"], indirect=True)
def test_its_score_is_the_sum_of_both_and_a_folder_keeps_them(start, sentences, tmp_path):
    ranker, folder = start
    cross = Ranker.from_backbone(folder, "cross", device="cpu")
    cross = Ranker(_trained(cross.model), cross.text, device="cpu")
    plain = Ranker.from_backbone(folder, "cross", device="cpu", residual=False)
    assert plain.model.base is None
    assert not plain.model.config.residual
    weights = cross.model.state_dict().items()
    plain.model.load_state_dict({name: tensor for name, tensor in weights if not name.startswith("base.")})
    both, added, base = (torch.as_tensor(source.score(CONTEXTS, sentences)) for source in (cross, plain, ranker))
    torch.testing.assert_close(both, added + base, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(both, base, atol=0.1)
    cross.save_pretrained(tmp_path / "cross")
    again = Ranker.from_pretrained(tmp_path / "cross", device="cpu")
    continued = Ranker.from_backbone(tmp_path / "cross", "cross", device="cpu")  # with its base
    for loaded in (again, continued):
        assert torch.equal(torch.as_tensor(loaded.score(CONTEXTS, sentences)), both)
    assert continued.model.base.title in again.model.describe()["added to"]


@pytest.mark.parametrize("start", ["poly", "late"], indirect=True)
def test_updates_of_a_user_never_change_the_base(start, sentences):
    """A `Trainer` takes updates that no configuration names."""
    cross = Ranker.from_backbone(start[1], "cross", device="cpu")
    optimizer = torch.optim.SGD(cross.model.parameters(), lr=0.1, weight_decay=0.1)
    schedule = Schedule(optimizer, ScheduleConfig(name="constant", warmup_updates=0), total_updates=None)
    precision = Precision("float32", torch.device("cpu"))
    before = copy.deepcopy(cross.model.state_dict())
    trainer = Trainer(cross, updates=OptimizerUpdates(cross.model, optimizer, schedule, precision=precision))
    trainer.step(Collator(cross.text)([Example(["say", text], text) for text in sentences[:4]]))
    assert cross.model.tower.training
    assert not any(module.training for module in cross.model.base.modules())
    changed = [name for name, tensor in cross.model.state_dict().items() if not tensor.equal(before[name])]
    assert "linear.weight" in changed
    assert not any(name.startswith("base.") for name in changed)


@mostly_long(("start", "lora"), [("poly", {}), ("bi", {"lora": 2})], indirect=["start"], quick=1)
def test_training_never_changes_the_base(start, tmp_path, lora, sentences):
    ranker, folder = start
    rows = [{"context": ["say", text], "response": text} for text in sentences]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = TrainSettings.of(
        {"architecture": "cross", "backbone": str(folder), "train": str(tmp_path / "train.jsonl"), "epochs": 1}
        | {"valid": str(tmp_path / "train.jsonl"), "out": str(tmp_path / "out"), "num_negatives": 3, "device": "cpu"}
        | {"learning_rate": 0.01, **lora}
    )
    before = build_untrained_ranker(settings)
    torch.testing.assert_close(
        torch.as_tensor(before.score(CONTEXTS, sentences)),
        torch.as_tensor(ranker.score(CONTEXTS, sentences)),
        atol=1e-5,
        rtol=1e-5,
    )
    train_ranker(settings)
    after = Ranker.from_pretrained(tmp_path / "out", device="cpu")
    for name, tensor in after.model.base.state_dict().items():
        assert torch.equal(tensor, ranker.model.state_dict()[name])
    assert after.model.linear.weight.abs().max() > 0


@pytest.mark.parametrize("start", ["bi"], indirect=True)
def test_what_it_cannot_do_is_an_error(start, make_ranker, tmp_path):
    ranker, folder = start
    cross = Ranker.from_backbone(folder, "cross", device="cpu")
    with pytest.raises(InputError, match="residual cross-encoder is not exported to ONNX"):
        cross.model.export_steps()
    prompt = {"context_prompt": "query: "}
    with pytest.raises(ConfigError, match=r"context_prompt is 'query: ', but the ranker that .* has '': leave it out"):
        Ranker.from_backbone(folder, "cross", text=prompt)
    assert Ranker.from_backbone(folder, "cross", text=prompt, residual=False).model.base is None
    with pytest.raises(ConfigError, match="residual adds .* but it is a bi-encoder from"):
        Ranker.from_backbone(folder, "bi", residual=True)
    make_ranker("cross").save_pretrained(tmp_path / "cross")
    with pytest.raises(ConfigError, match="residual adds .* from a cross-encoder"):
        Ranker.from_backbone(tmp_path / "cross", "cross", residual=True)
    with pytest.raises(ConfigError, match="none: no such folder or file; give the folder of an encoder"):
        Ranker.from_backbone(tmp_path / "none", "cross", residual=True)
    assert Ranker.from_backbone(tmp_path / "cross", "cross").model.base is None
    wrong = replace(ranker.model.config, base=ranker.model.config)
    with pytest.raises(ConfigError, match="does not add its score"):
        build_model(wrong)
    with pytest.raises(ConfigError, match="adds to another score itself"):
        RankerConfig.from_json(replace(wrong, base=wrong).to_json(), origin="config.json")


@pytest.mark.parametrize("start", ["poly"], indirect=True)
def test_continued_training_keeps_the_layout_of_the_base(start, tmp_path):
    cross = Ranker.from_backbone(start[1], "cross", device="cpu")
    cross.save_pretrained(tmp_path / "cross")
    settings = {"init": str(tmp_path / "cross"), "train": "train.jsonl", "out": str(tmp_path / "out"), "epochs": 1}
    with pytest.raises(ConfigError, match="context_prompt is 'query: ', but the ranker that .* has ''"):
        build_starting_ranker(TrainSettings.of(settings | {"context_prompt": "query: "}))
    shorter = build_starting_ranker(TrainSettings.of(settings | {"text_truncate": 20, "device": "cpu"}))
    assert shorter.text.config.text_truncate == 20


def test_a_start_without_all_of_its_weights_is_an_error(make_model):
    bi = make_model("bi")
    cross = build_model(replace(make_model("cross").config, base=bi.config))
    weights = {name: tensor for name, tensor in bi.state_dict().items() if "own_candidate_tower" not in name}
    with pytest.raises(CheckpointError, match=r"base\.own_candidate_tower"):
        transfer_weights(cross, weights, origin="start")


@pytest.mark.parametrize("start", ["late"], indirect=True)
def test_new_tokens_have_embeddings_in_both(start, sentences):
    cross = Ranker.from_backbone(start[1], "cross", device="cpu")
    model, before = cross.model, torch.as_tensor(cross.score(CONTEXTS, sentences))
    size = model.config.backbone["vocab_size"]
    assert not model.grow_vocabulary(size)
    assert model.grow_vocabulary(size + 3)
    assert {config.backbone["vocab_size"] for config in (model.config, model.config.base, model.base.config)} == {
        size + 3
    }
    assert {backbone.model.get_input_embeddings().num_embeddings for backbone in model.backbones} == {size + 3}
    torch.testing.assert_close(torch.as_tensor(cross.score(CONTEXTS, sentences)), before)
    build_model(model.config).load_state_dict(model.state_dict())
