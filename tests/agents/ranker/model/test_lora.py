"""`--lora`: adapters alone are trained, model files have them merged, and runs are resumed with them apart."""

from __future__ import annotations

import pytest
import torch

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError
from tests.agents.flag_tables import flags_of
from tests.parameters import mostly_long

pytest.importorskip("peft", reason="the extra [lora] is not installed")

# of the encoder's vocabulary: unknown words would be equal candidates, and the batch would be skipped
TURNS = [{"text": "do you ski ?", "labels": ["i love snow ."]}, {"text": "any pets ?", "labels": ["a cat ."]}]
TEXTS = ["do you ski ?"], ["i love snow .", "a cat ."]
OPTIONS = {"lora": 2, "lora_targets": "query,value", "learningrate": 1e-2, "warmup_updates": -1}
OPTIONS |= {"text_truncate": 24, "label_truncate": 12}


@pytest.mark.slow
@mostly_long("model", ["polyencoder", "crossencoder"], quick=1)
def test_trained_saved_and_resumed(model, make_agent, respond, backbone_folder, task, tmp_path):
    options = {**OPTIONS, "backbone": str(backbone_folder("bert")), **task}
    if model == "crossencoder":
        options["candidates"] = "batch"
    path = tmp_path / "model"

    def train(agent, batches):
        torch.manual_seed(0)
        for _ in range(batches):
            respond(agent, *TURNS)
        return agent

    def begin():
        torch.manual_seed(1)
        return make_agent(model, **options, dict_file=str(tmp_path / "new.dict"))

    whole = train(begin(), 4)
    assert whole.trainer.updates.count == 4
    of_encoders = {id(parameter) for backbone in whole.ranker.backbones for parameter in backbone.parameters()}
    for name, parameter in whole.ranker.named_parameters():
        assert parameter.requires_grad == ("lora_" in name or id(parameter) not in of_encoders), name
    half = train(begin(), 2)
    half.save(str(path))
    loaded = Ranker.from_pretrained(path, device="cpu")
    assert not any("lora_" in name for name in loaded.model.state_dict())
    scores = torch.as_tensor(Ranker(half.ranker.eval(), half.dict.text, device="cpu").score(*TEXTS))
    torch.testing.assert_close(torch.as_tensor(loaded.score(*TEXTS)), scores, atol=1e-5, rtol=1e-5)

    resumed = train(make_agent(model, model_file=path, datatype="train", **options), 2)
    for (name, value), other in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(value, other), name
    for other in ({"lora": 3}, {"lora_alpha": 64.0}, {"lora_targets": "query"}):
        with pytest.raises(CheckpointError, match="this run began with another --lora, --lora-alpha or --lora-targets"):
            make_agent(model, model_file=path, datatype="train", **{**options, **other})
    assert not make_agent(model, model_file=path, datatype="valid").ranker.is_adapted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": 2}, "--lora 2: adapts a trained encoder: give --backbone or --init-model"),
        ({"lora_alpha": 3.0}, "--lora-alpha 3.0 is read only with --lora"),
        ({"lora": 2, "type_optimization": "all"}, "lora is not read with fine_tuned"),
        ({"lora": 0}, "lora is 0"),
    ],
)
def test_what_cannot_be(make_agent, options, message):
    with pytest.raises(ConfigError, match=message):
        make_agent("biencoder", **options)


def test_a_convert_has_no_such_flags():
    assert not [name for name in flags_of(model="convert") if name.startswith("lora")]
    assert len([name for name in flags_of(model="biencoder") if name.startswith("lora")]) == 4
