"""R@1 against counting by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from polyencoder.data.example import Example
from polyencoder.errors import InputError
from polyencoder.evaluation import evaluate, example_scores, recall_at_1
from polyencoder.evaluation.tfidf import evaluate_tfidf
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@mostly_long(("architecture", "seed"), [("poly", 1), ("cross", 2), ("bi", 1), ("late", 2)], quick=2)
def test_recall_is_how_often_the_label_is_first(make_ranker, sentences, architecture, seed):
    """Contexts of different lengths, each with candidates of its own, one by one through `score`."""
    ranker = make_ranker(architecture, seed=seed)
    contexts = [["hi"], ["hi", "do you ski ?", "no , i read books ."], ["ski ?"], ["hello", "hi"]]
    examples = [Example(context, label, sentences[i:]) for i, context in enumerate(contexts) for label in sentences[i:]]
    scores = [ranker.score([example.turns], example.choices)[0] for example in examples]
    hits = [example.choices[int(row.argmax())] == example.label for example, row in zip(examples, scores, strict=True)]
    assert recall_at_1(ranker, examples) == sum(hits) / len(hits)
    firsts = [Example(context, ranker.rank(context, sentences)[0].text, sentences) for context in contexts]
    assert recall_at_1(ranker, firsts) == 1.0


def test_recall_of_what_cannot_be_counted(make_ranker):
    """By a ranker and by the keyword baseline."""
    for count in (partial(recall_at_1, make_ranker("bi")), partial(evaluate_tfidf, ["aa bb"])):
        with pytest.raises(InputError, match="no example to evaluate the ranker on"):
            count([])
        with pytest.raises(InputError, match="example 2: the label 'c' is not among its 2 candidates"):
            count([Example(["hi"], "aa", ["aa", "bb"]), Example(["hi"], "c", ["aa", "bb"])])
        with pytest.raises(InputError, match="my.jsonl, line 7: the label 'a' is not among its 1 candidates"):
            count([Example(["hi"], "a", ["b"], "my.jsonl, line 7")])


@pytest.mark.parametrize("architecture", ["bi", "cross", "late"])
def test_a_context_without_text_is_an_error(make_ranker, architecture):
    for turns in ([], [" "]):
        with pytest.raises(InputError, match="context 0 is empty"):
            evaluate(make_ranker(architecture), [Example(turns, "yes", ["yes", "no"])])


@pytest.mark.parametrize("architecture", ["cross", "late"])
def test_a_candidate_without_text_is_an_error_where_pairs_are_read(make_ranker, architecture):
    with pytest.raises(InputError, match="candidate 1 is empty"):
        evaluate(make_ranker(architecture), [Example(["hi"], "yes", ["yes", " "])])


def test_baseline_and_ranker_count_an_equal_candidate_once(make_ranker):
    report = evaluate_tfidf(["i ski", "dogs", "cats"], [Example(["dogs ski"], "ski", ["dogs ski", "dogs ski", "ski"])])
    assert report["rank"] == 2.0
    ranker = make_ranker("bi")
    once = evaluate(ranker, [Example(["dogs ski"], "ski", ["dogs ski", "ski"])]).report()["rank"]
    assert evaluate(ranker, [Example(["dogs ski"], "ski", ["dogs ski", "dogs ski", "ski"])]).report()["rank"] == once


@pytest.mark.parametrize("architecture", ["bi", "cross", "late"])
def test_equal_tokens_have_equal_scores(make_ranker, monkeypatch, architecture):
    """Texts that a ranker cannot tell apart are one candidate, whichever batches they would be in."""
    ranker, noise = make_ranker(architecture), torch.Generator().manual_seed(0)
    name = "encode_candidates" if architecture == "bi" else "forward"
    usual = getattr(ranker.model, name)

    def noisy(*parts, **options):
        scores = usual(*parts, **options)
        if len(parts) < 3:
            return scores + 1e-3 * torch.rand(scores.shape, generator=noise)
        return scores + 1e-3 * torch.rand(len(parts[1]), generator=noise)[parts[2].clamp(min=0)]

    monkeypatch.setattr(ranker.model, name, noisy)
    texts = ["do you ski ?", "Do you ski ?", "no , i read books ."]
    scores = dict(example_scores(ranker, [Example(["hi"], text, [*texts, texts[1]]) for text in texts]))
    assert all(row[0] == row[1] == row[3] != row[2] for row in scores.values())
    ranks = [evaluate(ranker, [Example(["hi"], text, texts)]).report()["rank"] for text in texts[:2]]
    assert ranks[0] == ranks[1]
