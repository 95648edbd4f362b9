"""A teacher says what its ranker scores, and its ranker is asked once for each pair; several teach as one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyencoder import InputError, Ranker
from polyencoder.training.distillation import Teacher, select_shortlist
from polyencoder.training.score_cache import ScoreCache
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

CONTEXTS = [["hello , how are you ?", "fine . you ?"], "do you ski ?", ["do you have pets ?"]]
CANDIDATES = ["i have two dogs .", "i am fine .", "yes , in the mountains .", "i teach ."]
ARCHITECTURES = ["bi", "poly", "cross", "late"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_are_the_rankers(architecture, make_ranker):
    ranker = make_ranker(architecture)
    expected = torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES))
    index = torch.tensor([[3, 1, -1], [0, 2, 3], [2, -1, -1]])
    teacher = Teacher(ranker, ScoreCache(None))
    for _ in range(2):
        scores = teacher.score(CONTEXTS, CANDIDATES, index)
        assert (scores[index < 0] == -math.inf).all()
        torch.testing.assert_close(scores[index >= 0], expected.gather(1, index.clamp(min=0))[index >= 0])
    assert teacher.num_scored == 6


@mostly_long("architecture", ["bi", "cross"], quick=1)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(indexes=st.lists(st.lists(st.lists(st.integers(-1, 3), min_size=2, max_size=2), min_size=3, max_size=3)))
def test_only_new_pairs_are_asked_for(architecture, indexes, make_ranker):
    ranker = make_ranker(architecture)
    expected = torch.as_tensor(ranker.score(CONTEXTS, CANDIDATES))
    teacher, seen = Teacher(ranker, ScoreCache(None)), set()
    for rows in indexes:
        num_before = teacher.num_scored
        scores = teacher.score(CONTEXTS, CANDIDATES, torch.tensor(rows))
        new = {(i, position) for i, row in enumerate(rows) for position in row if position >= 0} - seen
        assert teacher.num_scored - num_before == len(new)
        seen |= new
        for i, row in enumerate(rows):
            for position, score in zip(row, scores[i].tolist(), strict=True):
                assert score == pytest.approx(expected[i, position].item() if position >= 0 else -math.inf, abs=1e-4)


def test_the_file_serves_the_next_run(make_ranker, tmp_path):
    index = torch.arange(4).expand(3, 4)
    first = Teacher(make_ranker("cross"), ScoreCache(tmp_path / "scores"))
    scores = first.score(CONTEXTS, CANDIDATES, index)
    second = Teacher(make_ranker("cross"), ScoreCache(tmp_path / "scores"))
    assert torch.equal(second.score(CONTEXTS, CANDIDATES[::-1], 3 - index), scores)
    assert (first.num_scored, second.num_scored) == (12, 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pairs_that_do_not_recur_are_kept_of_a_cross_encoder_alone(architecture, make_ranker):
    """Other rankers score them to the bit as those that they keep."""
    index = torch.tensor([[3, 1, -1, 2], [0, 2, 3, 1], [2, -1, -1, 0]])
    cache, keeps = ScoreCache(None), architecture == "cross"
    teacher = Teacher(make_ranker(architecture), cache)
    scores = teacher.score(CONTEXTS, CANDIDATES, index, recur=False)
    assert (teacher.num_scored, len(cache)) == (9, 9 if keeps else 0)
    assert torch.equal(scores, teacher.score(CONTEXTS, CANDIDATES, index))
    assert (teacher.num_scored, len(cache)) == (9 if keeps else 18, 9)


@pytest.mark.parametrize("architecture", ["bi", "poly", "late"])
def test_pairs_that_do_not_recur_are_scored_once_in_a_step(architecture, make_ranker):
    ranker = make_ranker(architecture)
    teacher = Teacher(ranker, ScoreCache(None))
    first, second = torch.tensor([[3, 1], [0, -1], [2, 1]]), torch.tensor([[1, 0], [-1, 0], [2, 1]])
    for contexts in (CONTEXTS, CONTEXTS[::-1]):  # the next step has other lists
        scores = torch.as_tensor(ranker.score(contexts, CANDIDATES))
        for index, new in ((first, 5), (second, 1)):
            num_before = teacher.num_scored
            actual = teacher.score(contexts, CANDIDATES, index, recur=False)
            expected = scores.gather(1, index.clamp(min=0)).masked_fill(index < 0, -math.inf)
            torch.testing.assert_close(actual, expected)
            assert teacher.num_scored - num_before == new


def test_other_teachers_and_other_contexts_have_scores_of_their_own(make_ranker, tmp_path):
    cache, index = ScoreCache(tmp_path / "scores"), torch.tensor([[0, 1]])
    expected = [torch.as_tensor(make_ranker("cross").score([CONTEXTS[1]], CANDIDATES[:2]))]
    Teacher(make_ranker("cross"), cache).score([CONTEXTS[1]], CANDIDATES, index)
    for changes in ({"seed": 1}, {"output_scaling": 0.5}):
        other = Teacher(make_ranker("cross", **changes), cache)
        scores = other.score([CONTEXTS[1]], CANDIDATES, index)
        assert other.num_scored == 2
        torch.testing.assert_close(scores, torch.as_tensor(other.ranker.score([CONTEXTS[1]], CANDIDATES[:2])))
        assert not torch.allclose(scores, expected[0])
    turns = Teacher(make_ranker("cross"), cache)
    turns.score([["do you", "ski ?"]], CANDIDATES, index)
    turns.score([["do you", "ski", "?"]], CANDIDATES, index)
    assert turns.num_scored == 4
    assert Teacher(make_ranker("cross"), cache, bf16=True).score([CONTEXTS[1]], CANDIDATES, index).dtype == torch.float
    assert len(cache) == 12


def test_shortlist():
    scores = torch.tensor([[1.0, 9.0, 3.0, 5.0], [4.0, 2.0, -math.inf, -math.inf]])
    labels = torch.tensor([0, 1])
    assert select_shortlist(scores, labels, 3).tolist() == [[0, 1, 3], [1, 0, -1]]
    assert select_shortlist(scores, labels, 9).tolist() == [[0, 1, 3, 2], [1, 0, -1, -1]]
    assert select_shortlist(scores[:, :1], torch.tensor([0, 0]), 5).tolist() == [[0], [0]]


def test_a_teacher_of_another_vocabulary(backbone_folder):
    teacher = Teacher(Ranker.from_backbone(backbone_folder("bert"), device="cpu"), ScoreCache(None), name="runs/big")
    index = torch.tensor([[0, 1]])
    expected = r"runs/big cannot teach here: its vocabulary lacks 80% of the tokens .* such as 'zwei Katzen .'"
    with pytest.raises(InputError, match=expected) as caught:
        teacher.score(["do you ski ?"], ["zwei Katzen .", "drei Hunde"], index)
    assert caught.value.argument == "teacher"
    assert teacher.score(["do you ski ?"], ["i ski .", "drei Hunde"], index).isfinite().all()
    student = teacher.ranker.text  # one that knows as little
    teacher = Teacher(teacher.ranker, ScoreCache(None), student=student)
    assert teacher.score(["do you ski ?"], ["zwei Katzen .", "drei Hunde"], index).isfinite().all()
