"""From a configuration to the parts of a run: each setting arrives where it acts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers

from polyencoder.errors import ConfigError
from polyencoder.ranker import Ranker
from polyencoder.settings.training import HardNegatives, OptimizerConfig
from polyencoder.training.building import build_mined_negatives, build_objective, build_updates
from polyencoder.training.distillation import Distillation
from polyencoder.training.distributed import Processes
from polyencoder.training.objective import CrossEntropy
from polyencoder.training.progress import Goal
from polyencoder.training.trainer import Trainer
from tests.parameters import mostly_long
from tests.polyencoder.training.runs import CONFIG, EXAMPLES

GOAL = Goal(examples=80, updates=None)


def updates_of(ranker, *, goal: Goal = GOAL, count: int = 1, **changes):
    return build_updates(ranker, replace(CONFIG, **changes), goal=goal, processes=Processes(0, count))


@pytest.mark.parametrize(
    ("fine_tuned", "trained"),
    [("all", {"embeddings", "0", "1"}), ("all_encoder_layers", {"0", "1"}), ("top_layer", {"1"})],
)
def test_layers_are_frozen_before_the_optimizer_gets_them(make_ranker, fine_tuned, trained):
    ranker = make_ranker("bi")
    updates = updates_of(ranker, fine_tuned=fine_tuned)
    optimized = {id(parameter) for group in updates.optimizer.param_groups for parameter in group["params"]}
    names = {name for name, parameter in ranker.model.named_parameters() if id(parameter) in optimized}
    trained_parts = {part for name in names for part in name.split(".") if part in ("embeddings", "0", "1")}
    assert trained_parts == trained
    assert names == {name for name, parameter in ranker.model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize(("accumulate", "count", "expected"), [(1, 1, 20), (2, 1, 10), (1, 2, 10), (2, 2, 5)])
def test_a_schedule_ends_with_the_run(make_ranker, accumulate, count, expected):
    """80 examples in batches of 4, in one process or several: as many updates until the rate is 0."""
    updates = updates_of(make_ranker("bi"), accumulate=accumulate, count=count)
    assert updates.schedule.expected_updates == expected


def test_a_clip_of_0_is_none(make_ranker):
    ranker = make_ranker("bi")
    updates = updates_of(ranker, clip=0.0)
    for parameter in ranker.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    updates.step()
    assert updates.norm > 1e4  # measured, not limited


def test_the_objective(make_ranker, tmp_path):
    ranker = make_ranker("bi")
    plain = build_objective(ranker, replace(CONFIG, label_smoothing=0.2, grad_cache=3, pair_tokens=50))
    assert isinstance(plain.loss, CrossEntropy)
    assert plain.loss.label_smoothing == 0.2
    make_ranker("cross").save_pretrained(tmp_path / "teacher")
    taught = replace(CONFIG.distillation, teacher=str(tmp_path / "teacher"), weight=0.5)
    loss = build_objective(ranker, replace(CONFIG, distillation=taught)).loss
    assert isinstance(loss, Distillation)
    assert loss.teacher.ranker.model.config.architecture == "cross"


def test_a_cross_encoder_has_its_base_mine(make_ranker, tmp_path):
    mining = replace(CONFIG, candidates="inline", hard_negatives=HardNegatives(count=2, every=3))
    with pytest.raises(ConfigError, match="mined by vectors, and a cross-encoder has none, unless it starts"):
        build_mined_negatives(make_ranker("cross"), mining)
    make_ranker("bi").save_pretrained(tmp_path / "bi")
    assert build_mined_negatives(Ranker.from_backbone(tmp_path / "bi", "cross", device="cpu"), mining)


SIZES = {"hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 256}
SIZES_OF_DISTILBERT = {"dim": 256, "n_layers": 1, "n_heads": 2, "hidden_dim": 256}


@pytest.mark.slow
@mostly_long(("kind", "sizes"), [("Bert", SIZES), ("Roberta", SIZES), ("DistilBert", SIZES_OF_DISTILBERT)], quick=1)
def test_a_poly_encoders_codes_learn_to_look_at_different_tokens(make_hf_tokenizer, tmp_path, kind, sizes):
    """At the encoder's rate they stay where they started, whose vectors of an encoder like BERT are nearly the same."""
    config = getattr(transformers, f"{kind}Config")(vocab_size=64, max_position_embeddings=40, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    make_hf_tokenizer(kind.lower()).save_pretrained(tmp_path)

    def cosine(**rates) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            ranker = Ranker.from_backbone(tmp_path, "poly", device="cpu", n_codes=16)
            optimizer = OptimizerConfig(learning_rate=1e-4, **rates)
            Trainer(ranker, replace(CONFIG, max_updates=30, optimizer=optimizer), train=EXAMPLES).fit()
            vectors = torch.from_numpy(ranker.encode_contexts([example.turns for example in EXAMPLES]).vectors)
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return float((vectors @ vectors.mT).mean())

    trained = cosine()
    assert trained < 0.9
    assert trained < cosine(new_learning_rate=1e-4) - 0.02
