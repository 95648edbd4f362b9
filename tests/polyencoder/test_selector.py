"""`Selector`: the ranker's order and probabilities over tools and texts, and the probability of none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyencoder import ConfigError, InputError, Selector
from polyencoder.text.options import option_text, read_options
from tests.polyencoder.calibration.test_probability import calibrated, promise

TOOLS = [
    {"name": "pets", "description": "do you have any pets ?"},
    {"type": "function", "function": {"name": "ski", "description": "i like to ski in the mountains ."}},
    {"name": "teach", "description": "i am a teacher .", "inputSchema": {"properties": {"school": {}}}},
    "i have two dogs and a cat .",
]
TEXTS = [option_text(tool) for tool in TOOLS]
CHAT = [{"role": "user", "content": "hello"}, {"role": "user", "content": "do you have a dog ?"}]


@pytest.mark.parametrize("architecture", ["bi", "poly", "late", "cross"])
def test_the_choice_is_the_rankers(make_ranker, architecture):
    ranker = make_ranker(architecture)
    selection = Selector(ranker).select(CHAT, TOOLS)
    expected = ranker.rank(CHAT, TEXTS)
    assert [pick.index for pick in selection.chosen] == [pick.index for pick in expected]
    assert [pick.score for pick in selection.chosen] == pytest.approx([pick.score for pick in expected], abs=1e-5)
    assert all(pick.option is TOOLS[pick.index] and pick.probability is None for pick in selection.chosen)
    names = ["pets", "ski", "teach", None]
    assert [pick.name for pick in selection.chosen] == [names[pick.index] for pick in selection.chosen]
    assert selection.none_probability is None
    assert Selector(ranker).select(CHAT, TOOLS, top_k=2).chosen == selection.chosen[:2]


@pytest.mark.parametrize("count", [4, 30])
def test_probabilities_with_that_of_none_have_the_sum_1(make_ranker, count):
    ranker = calibrated(make_ranker("poly"))
    options = [*TOOLS, *(f"hello {n}" for n in range(count - len(TOOLS)))]
    selection = Selector(ranker).select(CHAT, options)
    weights = [math.exp(pick.score / ranker.calibration.temperature) for pick in selection.chosen]
    none = math.log(count) + ranker.calibration.none
    total = math.exp(none) + sum(weights)
    assert selection.none_probability == pytest.approx(math.exp(none) / total, rel=1e-6)
    assert [pick.probability for pick in selection.chosen] == pytest.approx([w / total for w in weights], rel=1e-6)


@pytest.mark.slow
def test_options_that_are_not_probable_enough_are_left_out(make_ranker):
    selector = Selector(calibrated(make_ranker("bi"), promises=(promise(threshold=0.2),)))
    whole = selector.select(CHAT, TOOLS)

    @settings(max_examples=40)
    @given(minimum=st.floats(0, 1), top_k=st.none() | st.integers(1, 6))
    def filtered(minimum, top_k):
        selection = selector.select(CHAT, TOOLS, min_probability=minimum, top_k=top_k)
        assert selection.chosen == [pick for pick in whole.chosen if pick.probability >= minimum][:top_k]
        assert selection.none_probability == whole.none_probability

    filtered()
    assert selector.select(CHAT, TOOLS, max_risk=0.1) == selector.select(CHAT, TOOLS, min_probability=0.2)
    nothing = selector.select(CHAT, TOOLS, min_probability=1)
    assert (nothing.chosen, nothing.best_left_out) == ([], whole.chosen[0])
    assert whole.best_left_out is None


@pytest.mark.slow
def test_what_was_chosen_stays(make_ranker):
    selector = Selector(calibrated(make_ranker("bi")))
    whole = selector.select(CHAT, TOOLS)
    by_key = {pick.name or pick.option: pick for pick in whole.chosen}

    @settings(max_examples=40)
    @given(
        keep=st.lists(st.sampled_from([*by_key, "gone"])), top_k=st.none() | st.integers(1, 6), minimum=st.floats(0, 1)
    )
    def check_kept(keep, top_k, minimum):
        chosen = selector.select(CHAT, TOOLS, keep=keep, top_k=top_k, min_probability=minimum).chosen
        stay = [by_key[key] for key in dict.fromkeys(keep) if key != "gone"]
        others = [pick for pick in whole.chosen if pick not in stay and pick.probability >= minimum]
        assert chosen == stay + others[: None if top_k is None else max(0, top_k - len(stay))]

    check_kept()


def test_the_best_option_is_left_out_unless_it_was_kept(make_ranker):
    selector = Selector(calibrated(make_ranker("bi")))
    best, *_, worst = selector.select(CHAT, TOOLS).chosen
    for keep, left_out in ((worst, best), (best, None)):
        selection = selector.select(CHAT, TOOLS, keep=[keep.name or keep.option], min_probability=1)
        assert (selection.chosen, selection.best_left_out) == ([keep], left_out)
    assert selector.select(CHAT, TOOLS, keep=[worst.name or worst.option], top_k=1).best_left_out is None


def test_the_first_of_equal_texts_is_kept(make_ranker):
    assert Selector(make_ranker("bi")).select("hi", ["hello", "you", "you"], keep=["you"]).chosen[0].index == 1


@pytest.mark.parametrize("keep", ["pets", [3], None])
def test_kept_options_that_are_no_names(make_ranker, keep):
    with pytest.raises(InputError, match="keep"):
        Selector(make_ranker("bi")).select(CHAT, TOOLS, keep=keep)


def test_equal_texts_are_one_option(make_ranker):
    selector = Selector(calibrated(make_ranker("bi")))
    once, repeated = selector.select("hi", ["hello", "you"]), selector.select("hi", ["hello", "you", "hello"])
    assert repeated.none_probability == pytest.approx(once.none_probability)
    assert {pick.index for pick in repeated.chosen} == {0, 1, 2}


@pytest.mark.parametrize("architecture", ["bi", "poly", "late"])
def test_options_are_read_once_for_many_conversations(make_ranker, architecture):
    ranker, read = make_ranker(architecture), []
    selector = Selector(ranker)
    for tower in ranker.model.towers:
        tower.register_forward_pre_hook(lambda _, inputs: read.append(len(inputs[0])))
    first = selector.select("do you ski ?", TOOLS)
    assert sum(read) == len(TOOLS) + 1
    read.clear()
    more = selector.select("hello", [*TOOLS, "a new one"])  # not the list, each option is remembered
    assert sum(read) == 2
    assert len(more.chosen) == 5
    assert selector.select("do you ski ?", TOOLS[::-1]).chosen[0].option == first.chosen[0].option
    assert selector.select("do you ski ?", read_options(TOOLS)) == first


def test_a_changed_configuration_changes_the_scores(make_ranker):
    ranker = make_ranker("bi")
    before = torch.as_tensor(ranker.score(["hi"], ["hello", "you"]))
    ranker.model.config = replace(ranker.model.config, output_scaling=2 * ranker.model.config.output_scaling)
    torch.testing.assert_close(torch.as_tensor(ranker.score(["hi"], ["hello", "you"])), 4 * before)


def test_diversity_does_not_read_the_candidates_again(make_ranker):
    ranker, read = make_ranker("bi"), []
    for tower in ranker.model.towers:
        tower.register_forward_pre_hook(lambda _, inputs: read.append(len(inputs[0])))
    ranker.rank("do you ski ?", ["hello", "you", "i ski ."], diversity=0.5, top_k=2)
    assert sum(read) == 4


def test_what_is_wrong_is_said(make_ranker, tmp_path):
    selector = Selector(make_ranker("bi"))
    with pytest.raises(ConfigError, match="needs a calibrated model, .* `polyencoder calibrate`"):
        selector.select("hi", TOOLS, min_probability=0.5)
    for conversation in ("", [], [{"role": "user", "content": " "}]):
        with pytest.raises(InputError, match="conversation 0 is empty"):
            selector.select(conversation, TOOLS)
    with pytest.raises(InputError, match="top_k is 0"):
        selector.select("hi", TOOLS, top_k=0)
    with pytest.raises(InputError, match=r"option 1 \('x'\) has no description"):
        selector.select("hi", [TOOLS[0], {"name": "x"}])
    with pytest.raises(ConfigError, match=r"Selector\('model'\): pass a ranker"):
        Selector("model")
