"""A multi-context ConveRT with fewer contexts, or one of its vectors: as if the rest had not been said."""

from __future__ import annotations

import pytest
import torch

from polyencoder.errors import ConfigError
from polyencoder.evaluation.contexts import choose_context_vector, reads_earlier_turns, use_contexts

CONTEXT = ["hello , how are you today ?", "i am fine , thank you .", "do you have any pets ?"]


@pytest.fixture
def ranker(make_convert_ranker):
    return make_convert_ranker(extra_contexts=5)


def scores(ranker, context, sentences) -> torch.Tensor:
    return torch.as_tensor(ranker.score([context], sentences))


@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_fewer_contexts_score_as_if_earlier_turns_had_not_been_said(ranker, sentences, kept):
    expected = scores(ranker, CONTEXT[-1 - kept :], sentences)
    torch.testing.assert_close(scores(use_contexts(ranker, extra_contexts=kept), CONTEXT, sentences), expected)
    whole = scores(ranker, CONTEXT, sentences)
    assert whole.allclose(expected) == (kept >= 2)


def test_the_immediate_vector_reads_the_last_turn_alone(ranker, sentences):
    of = use_contexts(ranker, vector="immediate")
    torch.testing.assert_close(scores(of, CONTEXT, sentences), scores(of, CONTEXT[-1:], sentences))
    assert not scores(of, CONTEXT, sentences).allclose(scores(of, ["hello", "i ski"], sentences))


def test_the_extra_vector_reads_the_others_alone(ranker, sentences):
    of = use_contexts(ranker, vector="extra")
    torch.testing.assert_close(scores(of, CONTEXT, sentences), scores(of, [*CONTEXT[:-1], "i ski"], sentences))
    assert not scores(of, CONTEXT, sentences).allclose(scores(of, ["hello", CONTEXT[-1]], sentences))
    assert not scores(of, CONTEXT[-1:], sentences).any()  # ranks nothing, so such examples are left out


def test_the_combined_vector_is_the_models_own(ranker, sentences):
    whole = scores(ranker, CONTEXT, sentences)
    use_contexts(ranker, vector="extra")
    assert not scores(ranker, CONTEXT, sentences).allclose(whole)  # the model is shared
    torch.testing.assert_close(scores(use_contexts(ranker, vector="combined"), CONTEXT, sentences), whole)


@pytest.mark.parametrize(
    ("context", "extra", "reads"),
    [
        (CONTEXT, None, True),
        (CONTEXT[-1:], None, False),
        (CONTEXT, 0, False),
        (CONTEXT, 1, True),
        (["your persona: i ski .", "hello"], 0, False),
    ],
)
def test_whether_there_are_earlier_turns_to_read(ranker, context, extra, reads):
    assert reads_earlier_turns(use_contexts(ranker, extra_contexts=extra), context) is reads


@pytest.mark.parametrize("kind", ["bi", "convert"])
def test_other_rankers_have_nothing_to_choose_from(make_ranker, kind):
    other = make_ranker(kind)
    for call in (
        lambda: use_contexts(other, extra_contexts=0),
        lambda: choose_context_vector(other.model, "extra"),
        lambda: reads_earlier_turns(other, CONTEXT),
    ):
        with pytest.raises(ConfigError, match="only a multi-context convert model has contexts to choose from"):
            call()


def test_what_is_no_vector_leaves_the_model_unchanged(ranker, sentences):
    before = scores(ranker, CONTEXT, sentences)
    with pytest.raises(ConfigError, match="it must be one of combined, immediate, extra"):
        use_contexts(ranker, vector="both")
    torch.testing.assert_close(scores(ranker, CONTEXT, sentences), before)
