"""The contenders of `benchmarks.uni` against transformers' own BERT and the library's rankers, and in miniature."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn
from transformers import BertModel

from benchmarks.uni import contenders
from benchmarks.uni import tower as towers
from benchmarks.uni.__main__ import main
from benchmarks.uni.contenders import Late, Uni, near, pairs
from benchmarks.uni.data import Data, read_examples
from benchmarks.uni.measures import difference, example_ranks, metrics
from benchmarks.uni.tower import Packed
from benchmarks.uni.training import Goal, Rates, fit
from polyencoder import Ranker
from polyencoder.data.example import Example
from polyencoder.modeling.late import SPEED

TURNS = [
    ["hello , how are you today ?", "i am fine , thank you .", "do you have any pets ?"],
    ["hello"],
    ["i like to ski in the mountains .", "what do you do for a living ?"],
]
TEXTS = ["i have two dogs and a cat .", "great", "i am a teacher . i teach math .", "my brother likes to ski too !"]
DEVICE = torch.device("cpu")


@pytest.fixture
def ranker(bert):
    """A late-interaction encoder of two different towers, all of whose exits count."""
    ranker = Ranker.from_backbone(bert, "late", device="cpu", reduction="mean", turn_separator="sep")
    with torch.no_grad():
        ranker.model.exits.copy_(torch.tensor([0.9, 0.5, 0.3, 0.4, 0.2]) / SPEED)
        for parameter in ranker.model.candidate_tower.layers().parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return ranker


@pytest.fixture(autouse=True)
def _distinct(monkeypatch):
    """Vectors of an untrained encoder are all alike: only equal ones count as near-duplicates."""
    monkeypatch.setattr(contenders, "NEAR", 1 - 1e-6)


@pytest.fixture
def data(ranker):
    examples = [Example(turns, TEXTS[row], TEXTS) for row, turns in enumerate(TURNS)]
    return Data(ranker.text, examples, device=DEVICE)


def shared(data):
    """All contexts and candidates."""
    return data.contexts(range(len(data))), data.packed(range(len(data.candidates)))


def own(data):
    """Every context with candidates of its own, of which there are different numbers."""
    lists = [[0, 1, 2], [3], [2, 0]]
    index = torch.tensor([[0, 1, 2], [3, -1, -1], [4, 5, -1]])
    packed = data.packed([one for some in lists for one in some], [0, 0, 0, 1, 2, 2])
    return data.contexts(range(3)), packed, index, lists


def random_head(model):
    for parameter in model.head.parameters():
        nn.init.normal_(parameter)
    return model


def uni(ranker, *, bias=-6.0, max_tokens=1 << 17):
    return Uni(copy.deepcopy(ranker.model), bias=bias, max_tokens=max_tokens)


def pair_output(ranker, data, row, candidate, bias):
    """The mean output of a candidate behind a context: transformers' BERT on one sequence with the prefix mask."""
    context, text = data._ids[row, : data.lengths[row]].tolist(), data.candidates[candidate]
    first, second = (copy.deepcopy(tower.model) for tower in ranker.model.towers)
    assert isinstance(first, BertModel)
    for model in (first, second):
        model.set_attn_implementation("eager")
    ids = torch.tensor([[*context, *text]])
    positions = torch.tensor([[*range(len(context)), *range(len(text))]])
    mask = torch.zeros(ids.size(1), ids.size(1))
    mask[: len(context), len(context) :] = -1e9
    mask[len(context) :, : len(context)] = bias
    # keys and values of the context are those of its own tower, so the two towers' weights take turns by token
    hidden = [model.embeddings(input_ids=ids, position_ids=positions)[0] for model in (first, second)]
    hidden = torch.cat([hidden[0][: len(context)], hidden[1][len(context) :]])
    for ours, theirs in zip(first.encoder.layer, second.encoder.layer, strict=True):
        parts = [layer.attention.self for layer in (ours, theirs)]
        q, k, v = (
            torch.cat([getattr(parts[0], n)(hidden[: len(context)]), getattr(parts[1], n)(hidden[len(context) :])])
            for n in ("query", "key", "value")
        )
        heads = [part.unflatten(-1, (2, -1)).transpose(0, 1) for part in (q, k, v)]
        weights = (heads[0] @ heads[1].transpose(1, 2) / heads[0].size(-1) ** 0.5 + mask).softmax(-1)
        attended = (weights @ heads[2]).transpose(0, 1).flatten(1)
        outputs = []
        for layer, place in ((ours, slice(None, len(context))), (theirs, slice(len(context), None))):
            middle = layer.attention.output(attended[place], hidden[place])
            outputs.append(layer.output(layer.intermediate(middle), middle))
        hidden = torch.cat(outputs)
    return hidden[len(context) :].mean(0)


@torch.no_grad()
def test_late_scores_as_the_library(ranker, data):
    expected = ranker.score(TURNS, TEXTS)
    model = Late(copy.deepcopy(ranker.model))
    torch.testing.assert_close(model(*shared(data)), expected, atol=1e-5, rtol=1e-5)
    contexts, packed, index, lists = own(data)
    scores = model(contexts, packed, index)
    for row, numbers in enumerate(lists):
        torch.testing.assert_close(scores[row, : len(numbers)], expected[row, numbers], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("bias", [-6.0, 0.0])
def test_uni_starts_as_late(ranker, data, bias):
    model, expected = uni(ranker, bias=bias), ranker.score(TURNS, TEXTS)
    torch.testing.assert_close(model(*shared(data)), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_with_the_lowest_bias_a_candidate_is_read_alone(ranker, data):
    model = random_head(uni(ranker, bias=-1e4))
    _, prefix = model.read_contexts(data.contexts(range(3)))
    packed = data.packed(range(4))
    found, _ = model._candidate_tower.read(
        packed.ids, packed.attends, positions=packed.positions, prefix=prefix, bias=model.bias
    )
    alone = ranker.model.candidate_tower(ranker.text.candidates(TEXTS))
    means = [outputs[mask].mean(0) for outputs, mask in zip(alone, packed.mask, strict=True)]
    torch.testing.assert_close(packed.means(found), torch.stack(means).expand(3, -1, -1), atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("row", [512, 8])  # one row of candidates, and several
@pytest.mark.parametrize("max_tokens", [1 << 17, 1])
def test_cached_contexts_equal_pairs_with_the_prefix_mask(ranker, data, monkeypatch, row, max_tokens):
    monkeypatch.setattr(towers, "ROW", row)
    model = random_head(uni(ranker, bias=-0.5, max_tokens=max_tokens))
    contexts, packed = shared(data)
    assert (len(packed.counts) > 1) == (row == 8)
    scores, late = model(contexts, packed), ranker.score(TURNS, TEXTS)
    vectors = ranker.encode_contexts(TURNS).tokens
    expected = late.clone()
    for i in range(3):
        for j in range(4):
            u, x = pair_output(ranker, data, i, j, bias=-0.5), vectors[i].vectors[0]
            expected[i, j] += model.head(torch.cat([u, x, u * x]))[0]
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert (scores - late).std() > 0.1
    contexts, packed, index, lists = own(data)
    found = model(contexts, packed, index)
    for i, numbers in enumerate(lists):
        torch.testing.assert_close(found[i, : len(numbers)], expected[i, numbers], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_pairs_are_read_by_the_library(ranker, data, tmp_path):
    ranker.save_pretrained(tmp_path / "late")
    torch.manual_seed(0)
    found = pairs(str(tmp_path / "late"), device=DEVICE)(*shared(data))
    torch.manual_seed(0)
    theirs = Ranker.from_backbone(tmp_path / "late", "cross", device="cpu")
    theirs.model.linear.weight.normal_()
    torch.testing.assert_close(found, theirs.score(TURNS, TEXTS), atol=1e-5, rtol=1e-5)
    assert (found - ranker.score(TURNS, TEXTS)).abs().min() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["late", "uni"])
def test_the_order_of_candidates_and_other_candidates_change_no_score(ranker, data, kind):
    model = make(ranker, kind)
    if kind != "late":
        random_head(model)
    scores = model(*shared(data))
    order = [2, 0, 3]
    found = model(data.contexts([2, 0]), data.packed(order))
    torch.testing.assert_close(found, scores[[2, 0]][:, order], atol=1e-5, rtol=1e-5)


def make(ranker, kind):
    if kind == "uni":
        return uni(ranker)
    return Late(copy.deepcopy(ranker.model))


@pytest.mark.parametrize("kind", ["late", "uni"])
def test_training_lowers_the_loss(ranker, data, kind):
    model = make(ranker, kind)
    batch = next(data.batches(3, pool=3))
    before = model.loss(*batch).item()
    evaluations = []
    done = fit(
        model,
        data.batches(3, pool=3),
        Goal(math.inf, 30, evaluations=2),
        Rates(3e-3, 3e-2, 3e-1),
        autocast=torch.autocast("cpu", torch.bfloat16, enabled=False),
        evaluate=lambda updates, seconds: evaluations.append(updates),
    )
    assert evaluations == [15, 30]
    assert done[0] == 30
    assert model.loss(*batch).item() < 0.9 * before
    if kind == "uni":
        assert (model.bias != -6).all()


def test_gradients_of_blocks_are_those_of_all_at_once(ranker, data):
    gradients = []
    for max_tokens in (1 << 17, 1):
        torch.manual_seed(0)
        model = random_head(uni(ranker, bias=-1.0, max_tokens=max_tokens))
        model.loss(*shared(data), torch.tensor([0, 1, 2])).backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
    assert any(parameter is not None and parameter.abs().sum() > 0 for parameter in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_near_duplicates_are_no_negatives(ranker, data):
    model = Late(copy.deepcopy(ranker.model))
    packed = data.packed([0, 1, 0])
    _, candidates = model.compared(model.read_contexts(data.contexts([0]))[0], packed)
    assert near(candidates, torch.tensor([0, 2])).tolist() == [[False, False, True], [True, False, False]]


def test_packed_candidates():
    packed = Packed.of([[1, 2], [3], [4, 5, 6]], [0, 1, 1], device=DEVICE)
    assert packed.ids.tolist() == [[1, 2, 0, 0], [3, 4, 5, 6]]
    assert packed.positions.tolist() == [[0, 1, 0, 0], [0, 0, 1, 2]]
    assert packed.owner.tolist() == [[0, 0, -1, -1], [0, 1, 1, 1]]
    assert packed.each(packed.ids.unsqueeze(-1)).squeeze(-1)[packed.mask].tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.counts == [1, 2]


def test_batches_have_the_labels_of_more_examples(ranker, convai2):
    data = Data(ranker.text, read_examples(convai2 / "ConvAI2" / "train_self_original.txt"), device=DEVICE)
    contexts, packed, labels = next(data.batches(4, pool=10))
    assert (len(contexts), len(packed.place)) == (4, 10)
    texts = packed.each(packed.ids.unsqueeze(-1)).squeeze(-1)
    order = [*map(tuple, data.candidates)]
    for ids, mask, label in zip(
        contexts.tokens.ids.tolist(), contexts.tokens.mask.sum(1), labels.tolist(), strict=True
    ):
        row = next(i for i in range(len(data)) if data._ids[i, : data.lengths[i]].tolist() == ids[:mask])
        assert order[data.labels[row]] == tuple(texts[label][packed.mask[label]].tolist())


def test_metrics_and_differences(ranker, data):
    assert metrics([1, 1, 2, 4]) == pytest.approx({"R@1": 50, "standard error": 25, "MRR": 0.6875})
    assert difference([1, 1, 2, 4], [2, 1, 2, 1]) == pytest.approx((0, 100 * math.sqrt(0.5 / 4)))
    scores = ranker.score(TURNS, TEXTS)
    expected = [1 + int((row > row[i]).sum()) for i, row in enumerate(scores)]
    assert example_ranks(Late(copy.deepcopy(ranker.model)), data) == expected


@pytest.mark.slow
def test_command(ranker, convai2, tmp_path, capsys):
    ranker.save_pretrained(tmp_path / "late")
    files = [f"{name}_self_original.txt" for name in ("train", "valid")]
    words = ["--model", str(tmp_path / "late"), "--updates", "4", "--batch", "8", "--repeats", "1", "--device", "cpu"]
    words += ["--train", str(convai2 / "ConvAI2" / files[0]), "--valid", str(convai2 / "ConvAI2" / files[1])]
    for name, more in (("late", ["--pool", "16"]), ("uni", ["--evaluations", "2"])):
        main([*words, "--contender", name, "--json", str(tmp_path / f"{name}.json"), *more])
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("late", "uni")]
    assert all(report["start"] == reports[0]["start"] for report in reports)
    assert [len(report["curve"]) for report in reports] == [2, 3]
    assert all(len(report["ranks"]["trained"]) == 20 and report["ms"]["100"]["pairs"] > 0 for report in reports)
    assert str(tmp_path) not in json.dumps(reports)
    capsys.readouterr()
    main(["--compare", *(str(tmp_path / f"{name}.json") for name in ("late", "uni"))])
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == ["start", "late", "uni"]
    assert "ms, 20 candidates, uni" in printed
