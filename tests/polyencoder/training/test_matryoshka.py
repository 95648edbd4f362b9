"""Training of vectors whose first dimensions are used alone, and the shorter models that are made of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from polyencoder.data.collator import Collator
from polyencoder.data.example import Example
from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.index.open import open_index
from polyencoder.modeling.transfer import transfer_weights
from polyencoder.ranker import Ranker
from polyencoder.settings.training import DistillationConfig
from polyencoder.training.building import build_objective
from polyencoder.training.distillation import Teacher
from polyencoder.training.trainer import Trainer
from tests.polyencoder.training.runs import CONFIG, WORDS, Losses

pytestmark = pytest.mark.slow

PAIRS = [Example([f"do you like {word} ?"], f"i like {word} .") for word in WORDS]
CONTEXT = ["do you like cats ?", "i like dogs ."]
MODELS = [
    ("bi", {}),
    ("bi", {"normalize": True, "output_scaling": 3.0, "candidate_mlp": True}),
    ("poly", {"output_scaling": 2.0}),
    ("poly", {"normalize": True, "output_scaling": 3.0}),
]


@pytest.mark.parametrize(("architecture", "fields"), MODELS, ids=str)
def test_a_shortened_model_gives_the_first_dimensions(architecture, fields, make_ranker, sentences):
    ranker = make_ranker(architecture, **fields)
    short = ranker.shortened(6)
    whole, actual = (
        torch.as_tensor(ranker.encode_candidates(sentences)),
        torch.as_tensor(short.encode_candidates(sentences)),
    )
    expected = whole[:, :6]
    if fields.get("normalize"):
        expected = expected / expected.norm(dim=1, keepdim=True) * fields["output_scaling"]
    torch.testing.assert_close(actual, expected)
    assert (short.model.dim, actual.size(1)) == (6, 6)
    contexts = short.encode_contexts([CONTEXT])
    whole_contexts = torch.from_numpy(ranker.encode_contexts([CONTEXT]).vectors)
    torch.testing.assert_close(torch.from_numpy(contexts.vectors), ranker.model.truncate_vectors(whole_contexts, 6))
    assert torch.equal(torch.as_tensor(ranker.encode_candidates(sentences)), whole)  # the original is unchanged
    assert torch.equal(torch.as_tensor(ranker.shortened(ranker.model.dim).encode_candidates(sentences)), whole)


@pytest.mark.parametrize(("architecture", "fields"), MODELS, ids=str)
def test_the_loss_is_the_sum_of_those_of_the_shorter_models(architecture, fields, make_ranker):
    ranker = make_ranker(architecture, **fields)
    ranker.model.eval()
    objective = build_objective(ranker, replace(CONFIG, matryoshka=(8, 3, 8)))
    outcome = objective(Collator(ranker.text, "batch")(PAIRS))
    labels = torch.arange(len(PAIRS))
    losses = [
        F.cross_entropy(
            torch.as_tensor(shorter.score([pair.turns for pair in PAIRS], [pair.label for pair in PAIRS])), labels
        )
        for shorter in (ranker, ranker.shortened(8), ranker.shortened(3))
    ]
    torch.testing.assert_close(outcome.loss.detach(), sum(losses))
    assert outcome.sums["8_dim_loss"] == pytest.approx((len(PAIRS) * losses[1].item(), len(PAIRS)))
    torch.testing.assert_close(
        outcome.scores, torch.as_tensor(ranker.score([pair.turns for pair in PAIRS], [p.label for p in PAIRS]))
    )


def test_a_teacher_with_vectors_reads_a_step_once_for_all_lengths(make_ranker, tmp_path, monkeypatch):
    make_ranker("late", seed=2).save_pretrained(tmp_path / "teacher")
    ask, requests = Teacher._ask, []
    monkeypatch.setattr(Teacher, "_ask", lambda *request: requests.append(request) or ask(*request))
    distillation = DistillationConfig(teacher=str(tmp_path / "teacher"))
    ranker = make_ranker("bi")
    objective = build_objective(ranker, replace(CONFIG, matryoshka=(8, 3), distillation=distillation))
    for step in (1, 2):
        outcome = objective(Collator(ranker.text, "batch", with_turns=True)(PAIRS))
        assert len(requests) == step
        assert outcome.sums["teacher_pairs"] == (len(PAIRS) ** 2, 0)


def test_training_and_gradient_caching(make_ranker):
    curves = []
    for pieces in (0, 2):
        heard = Losses()
        ranker = make_ranker("poly")
        config = replace(CONFIG, matryoshka=(4,), max_updates=8, grad_cache=pieces)
        Trainer(ranker, config, train=PAIRS, callbacks=[heard]).fit()
        curves.append(heard.values)
    assert curves[0][-1] < curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)


def test_a_folder_of_a_shortened_model_is_a_model_of_its_own(make_ranker, sentences, tmp_path):
    ranker = make_ranker("poly", normalize=True)
    ranker.shortened(5).save_pretrained(tmp_path / "short")
    short = Ranker.from_pretrained(tmp_path / "short", device="cpu")
    expected = torch.as_tensor(ranker.shortened(5).score([CONTEXT], sentences))
    torch.testing.assert_close(torch.as_tensor(short.score([CONTEXT], sentences)), expected)
    index = short.index(sentences, tmp_path / "index")
    hits = short.search(CONTEXT, index, top_k=3)
    best = expected[0].topk(3)
    assert [hit.text for hit in hits] == [sentences[i] for i in best.indices]
    for other in (ranker, ranker.shortened(6)):
        with pytest.raises(CheckpointError, match="made by another model"):
            open_index(tmp_path / "index", other)


def test_a_new_model_around_its_encoder_has_whole_vectors(make_model):
    short, whole = make_model("bi", vector_dim=4), make_model("bi", seed=1)
    transfer_weights(whole, short.state_dict(), origin="short")
    assert (short.dim, whole.dim) == (4, make_model("bi").dim)


@pytest.mark.parametrize(
    ("architecture", "fields", "why"),
    [
        ("late", {}, "a late-interaction encoder compares more than single vectors"),
        ("cross", {}, "a cross-encoder compares more than single vectors"),
        ("poly", {"poly_attention": "multihead", "poly_attention_heads": 2}, "multi-head attention reads all"),
    ],
)
def test_models_that_cannot_be_shortened_say_why(architecture, fields, why, make_ranker):
    ranker = make_ranker(architecture, **fields)
    with pytest.raises(ConfigError, match=why):
        ranker.shortened(4)
    with pytest.raises(ConfigError, match=why):
        build_objective(ranker, replace(CONFIG, matryoshka=(4,), candidates="inline"))


def test_dimensions_that_there_are_not_are_errors(make_ranker):
    ranker = make_ranker("bi")
    for dim in (0, ranker.model.dim, 1000):
        with pytest.raises(ConfigError, match=f"matryoshka has {dim}; it must be at least 1 and below"):
            build_objective(ranker, replace(CONFIG, matryoshka=(dim,)))
    with pytest.raises(ConfigError, match=r"vector_dim is 1000, but the model's vectors have"):
        ranker.shortened(1000)
    with pytest.raises(ConfigError, match=r"vector_dim is 6, but the model's vectors have 4"):
        ranker.shortened(4).shortened(6)
