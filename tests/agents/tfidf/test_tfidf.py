"""`-m tfidf` against scikit-learn's own cosines, and ParlAI's commands on it."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parlai.core.agents import create_agent
from parlai.core.message import Message
from parlai.scripts.eval_model import EvalModel
from parlai.scripts.interactive import Interactive
from parlai.scripts.train_model import TrainModel
from parlai.tasks.selection.sample import sample_dialogues
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.evaluation.tfidf import FIELDS, Tfidf

WORDS = ["ski", "snow", "dog", "cat", "music", "rock", "doctor", "blue", "tokyo", "i", "like", "the"]
DICE = random.Random(0)
RESPONSES = [" ".join(DICE.choices(WORDS, k=DICE.randint(1, 5))) for _ in range(60)]


class Reference:
    """What scikit-learn says, one example at a time, each text vectorized anew."""

    def __init__(self, responses: list[str], *, ngrams: int = 1) -> None:
        self.vectorizer = TfidfVectorizer(ngram_range=(1, ngrams)).fit(responses)

    def ranked(self, context: str, candidates: list[str]) -> list[tuple[str, float]]:
        different = list(dict.fromkeys(candidates))
        vectors = self.vectorizer.transform([context]), self.vectorizer.transform(different)
        scores = cosine_similarity(*vectors)[0].astype(np.float32).tolist()
        return sorted(zip(different, scores, strict=True), key=lambda pair: -pair[1])

    def rank(self, context: str, candidates: list[str], label: str) -> int:
        return [text for text, _ in self.ranked(context, candidates)].index(label) + 1


@pytest.fixture
def make_weights(tmp_path) -> Callable[..., str]:
    """(responses, ngrams=1) -> a model file made without ParlAI."""

    def make(responses: list[str] = RESPONSES, *, ngrams: int = 1) -> str:
        Tfidf.fit(responses, ngrams=ngrams, task="test").save(str(tmp_path / "weights"))
        return str(tmp_path / "weights")

    return make


@pytest.fixture
def make_tfidf() -> Callable[..., Any]:
    """(**options) -> the agent that `eval_model` makes."""

    def make(**options: Any) -> Any:
        parsed = EvalModel.setup_args().parse_kwargs(model="tfidf", loglevel="error", **options)
        return create_agent(parsed)

    return make


@pytest.fixture
def evaluate_tfidf() -> Callable[..., dict[str, float]]:
    """(**options) -> the report of `eval_model -m tfidf -dt valid`."""

    def run(**options: Any) -> dict[str, float]:
        defaults = {"model": "tfidf", "datatype": "valid", "batchsize": 8, "loglevel": "error"}
        given = {name: value for name, value in {**defaults, **options}.items() if value is not None}
        return {name: float(value) for name, value in EvalModel.main(**given).items()}

    return run


def examples(count: int) -> list[dict[str, Any]]:
    """Contexts with 2 to 9 candidates, the label anywhere among them, a word that is not trained here and there."""
    found = []
    for number in range(count):
        candidates = DICE.sample(RESPONSES, DICE.randint(2, 9))
        context = " ".join([*DICE.choices(WORDS, k=3), "unheard" if number % 3 else "of"])
        found.append({"text": context, "eval_labels": [DICE.choice(candidates)], "label_candidates": candidates})
    return found


def ranking(reply: Message) -> list[tuple[str, float]]:
    return list(zip(reply["text_candidates"], reply["sorted_scores"], strict=True))


def same(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    texts, scores = zip(*found, strict=True)
    expected_texts, expected_scores = zip(*expected, strict=True)
    return texts == expected_texts and scores == pytest.approx(expected_scores, abs=1e-6)


# ---- ranking


@pytest.mark.parametrize("ngrams", [1, 2])
def test_inline_candidates_are_ranked_as_scikit_learn_would(ngrams, make_weights, make_tfidf, respond):
    agent = make_tfidf(model_file=make_weights(ngrams=ngrams), return_cand_scores=True)
    reference = Reference(RESPONSES, ngrams=ngrams)
    asked = examples(40)
    together = respond(agent, *asked)
    for example, reply in zip(asked, together, strict=True):
        expected = reference.ranked(example["text"], example["label_candidates"])
        assert same(ranking(reply), expected)
        assert reply["text"] == expected[0][0]
        rank = reference.rank(example["text"], example["label_candidates"], example["eval_labels"][0])
        n = len(example["label_candidates"])
        assert reply["metrics"]["rank"].value() == rank
        assert reply["metrics"]["mrr"].value() == pytest.approx(1 / rank)
        assert reply["metrics"][f"R{n}@1"].value() == (rank == 1)
        alone = respond(agent, example)[0]
        assert ranking(alone) == ranking(reply)
        assert alone["metrics"]["rank"].value() == rank


def test_several_labels_among_the_candidates_are_all_right(make_weights, make_tfidf, respond):
    """As for a ranker, which is compared with this baseline."""
    own = ["music", "snow dog", "blue", "dog"]
    turn = {"text": "dog", "label_candidates": own, "eval_labels": ["blue", "dog", "snow dog"]}
    metrics = respond(make_tfidf(model_file=make_weights()), turn)[0]["metrics"]
    assert metrics["R4@1"].value() == metrics["rank"].value() == 1
    assert 0.9 < metrics["nDCG@10"].value() < 1  # "blue" is no better than "music"


def test_fixed_candidates_and_a_label_beside_them(make_weights, make_tfidf, respond, tmp_path):
    fixed = list(dict.fromkeys(RESPONSES[:20]))
    (tmp_path / "fixed.txt").write_text("\n".join(fixed), encoding="utf-8")
    options = {"eval_candidates": "fixed", "fixed_candidates_path": str(tmp_path / "fixed.txt")}
    agent = make_tfidf(
        model_file=make_weights(), return_cand_scores=True, add_label_to_fixed_cands=True, hits_at="1,3", **options
    )
    reference = Reference(RESPONSES)
    asked = [{"text": "the snow", "eval_labels": ["snow snow unknown"]}, {"text": "blue dog", "eval_labels": fixed[:1]}]
    for example, reply in zip(asked, respond(agent, *asked), strict=True):
        label = example["eval_labels"][0]
        own = fixed if label in fixed else [*fixed, label]
        assert same(ranking(reply), reference.ranked(example["text"], own))
        assert reply["metrics"]["rank"].value() == reference.rank(example["text"], own, label)
        assert reply["metrics"]["hits@3"].value() == (reference.rank(example["text"], own, label) <= 3)
    with pytest.raises(InputError, match="not among the fixed candidates"):
        respond(make_tfidf(model_file=make_weights(), **options), asked[0])


def test_the_labels_of_a_batch_are_candidates(make_weights, make_tfidf, respond):
    agent = make_tfidf(model_file=make_weights(), return_cand_scores=True, eval_candidates="batch")
    asked = examples(7)
    labels = [example["eval_labels"][0] for example in asked]
    for example, reply in zip(asked, respond(agent, *asked), strict=True):
        assert same(ranking(reply), Reference(RESPONSES).ranked(example["text"], labels))


def test_a_batch_of_one_has_no_candidates(make_weights, make_tfidf, respond):
    agent = make_tfidf(model_file=make_weights(), eval_candidates="batch")
    asked = [one | {"eval_labels": [label]} for one, label in zip(examples(3), RESPONSES, strict=False)]
    with pytest.raises(InputError, match="--eval-candidates batch: a batch of one example has one candidate"):
        respond(agent, asked[0])
    assert all("metrics" in reply for reply in respond(agent, *asked[:2]))
    assert "metrics" not in respond(agent, asked[2])[0]
    assert agent.report()["without_negatives"].value() == 1
    with pytest.raises(ConfigError, match="--num-negatives 4 has no effect with --eval-candidates batch"):
        make_tfidf(model_file=make_weights(), eval_candidates="batch", task="selection:sample", num_negatives=4)


def test_candidates_without_a_shared_word_keep_their_order(make_weights, make_tfidf, respond):
    agent = make_tfidf(model_file=make_weights(), cap_num_predictions=3)
    candidates = ["cat", "dog", "ski", "doctor", "blue"]
    reply = respond(agent, {"text": "never heard of", "eval_labels": ["doctor"], "label_candidates": candidates})[0]
    assert reply["text_candidates"] == ["cat", "dog", "ski"]
    assert reply["metrics"]["rank"].value() == 4


@pytest.mark.parametrize(("context", "answer"), [("last", "the doctor"), ("all", "snow tokyo cat")])
def test_the_context_is_the_last_line_or_all_with_labels_of_earlier_turns(
    context, answer, make_weights, make_tfidf, respond
):
    agent = make_tfidf(model_file=make_weights(), tfidf_context=context, return_cand_scores=True)
    candidates = ["the doctor", "snow tokyo cat", "i like music"]
    turns = [
        {"text": "your persona: tokyo\nsnow", "eval_labels": ["cat"], "label_candidates": ["cat"]},
        {"text": "blue\na doctor", "eval_labels": [answer], "label_candidates": candidates},
    ]
    reply = respond(agent, turns)[0]
    said = {"last": "a doctor", "all": "your persona: tokyo snow cat blue a doctor"}[context]
    assert same(ranking(reply), Reference(RESPONSES).ranked(said, candidates))
    assert reply["text"] == answer


def test_without_labels_its_own_answers_are_history(make_weights, make_tfidf):
    agent = make_tfidf(model_file=make_weights(), tfidf_context="all")
    for text, answer in [("dog", "dog music"), ("blue", "music rock")]:
        agent.observe(Message({"text": text, "label_candidates": [answer], "episode_done": False}))
        assert agent.act()["text"] == answer
    assert agent.history.get_history_str() == "dog\ndog music\nblue\nmusic rock"
    agent.observe(Message({"text": "bye", "label_candidates": ["cat"], "episode_done": True}))
    agent.act()
    assert agent.history.get_history_str() is None


def test_remembered_vectors_change_nothing_and_are_not_made_again(monkeypatch):
    weights = Tfidf.fit(RESPONSES, task="test")
    fields = {name: getattr(weights, name) for name in FIELDS}
    lists = [DICE.sample(RESPONSES, 6) for _ in range(12)] + [RESPONSES]
    fresh = [Tfidf(**fields).cosines(["the dog", "snow"], texts) for texts in lists]
    for memory in (1, 4_000, 1_000_000):
        vectors = Tfidf(**fields, memory=memory)
        found = [vectors.cosines(["the dog", "snow"], texts) for texts in lists]
        assert all(np.array_equal(a, b) for a, b in zip(found, fresh, strict=True))
    made: list[str] = []
    transform = TfidfVectorizer.transform
    monkeypatch.setattr(TfidfVectorizer, "transform", lambda self, texts: made.extend(texts) or transform(self, texts))
    for texts in ([*RESPONSES, "new"], RESPONSES, ["new"]):
        vectors.cosines(["the dog"], texts)
    assert made == ["new", "the dog", "the dog", "the dog"]


# ---- what cannot be used


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"text": " "}, "has no text"),
        ({"label_candidates": []}, "has no candidates of its own"),
        ({"label_candidates": ["no ."]}, "has a label that is not among its 1 candidates"),
    ],
)
def test_a_bad_example_is_an_error_or_skipped_and_counted(change, problem, make_weights, make_tfidf, respond):
    good = {"text": "how is the snow ?", "eval_labels": ["snow"], "label_candidates": ["cat", "snow"]}
    with pytest.raises(InputError, match=problem):
        respond(make_tfidf(model_file=make_weights()), {**good, **change})
    agent = make_tfidf(model_file=make_weights(), ignore_bad_candidates=True)
    bad, answered = respond(agent, {**good, **change}, good)
    assert "text" not in bad
    assert answered["text"] == "snow"
    assert agent.report()["bad_examples"].value() == 1


def test_settings_that_cannot_be_are_one_line_errors(make_weights, make_tfidf, tmp_path):
    cases = [
        ({"tfidf_ngrams": 0}, "--tfidf-ngrams 0: give a whole number"),
        ({"cap_num_predictions": 0}, "--cap-num-predictions 0: give a whole number"),
        ({"hits_at": "one"}, "hits_at is 'one'"),
        ({"tfidf_ngrams": 2, "model_file": make_weights()}, "--tfidf-ngrams 2: .* was made with 1"),
        ({"eval_candidates": "fixed"}, "give --fixed-candidates-path"),
        ({}, "no task to fit to"),
    ]
    for options, message in cases:
        with pytest.raises((ConfigError, InputError), match=message) as error:
            make_tfidf(**options)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"[]", b'{"format": "tfidf-1"}', b'{"format": "other"}'])
def test_another_file_is_no_model(content, make_tfidf, tmp_path):
    (tmp_path / "model").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a model file of -m tfidf"):
        make_tfidf(model_file=str(tmp_path / "model"))


def test_labels_without_a_word_cannot_be_trained_on(make_task, make_tfidf, tmp_path):
    options = make_task(tmp_path, train=[[{"text": "hello", "labels": "? !"}]])
    with pytest.raises(InputError, match="no words in its 1 training labels"):
        make_tfidf(**options)


# ---- learning and saving


def test_the_weights_are_those_of_the_training_labels(task, labels, make_tfidf):
    answers = labels * 4  # of three questions and a second turn
    weights = make_tfidf(**task).tfidf
    assert weights.responses == 32
    expected = TfidfVectorizer().fit(answers)
    assert weights.terms == expected.get_feature_names_out().tolist()
    assert weights.idf == expected.idf_.tolist()
    assert make_tfidf(**task, tfidf_max_examples=5).tfidf.responses == 5
    twice = make_tfidf(**{**task, "task": "fromfile,selection:sample"}).tfidf
    assert twice.responses == 32 + 4000


@pytest.mark.slow
def test_train_model_learns_all_at_once_and_saves_it(evaluate_tfidf, tmp_path, monkeypatch, capsys):
    path = tmp_path / "model"
    options = {"task": "selection:sample", "batchsize": 16, "loglevel": "error"}
    valid, _ = TrainModel.main(model="tfidf", model_file=str(path), num_epochs=2, tfidf_context="all", **options)
    assert json.loads(path.read_text(encoding="utf-8"))["responses"] == 4000
    assert not path.with_name("model.dict").exists()
    assert json.loads(path.with_name("model.trainstats").read_text())["train_steps"] == 1
    fresh = evaluate_tfidf(**options, tfidf_context="all")
    monkeypatch.delattr(Tfidf, "fit")  # from here on, what was saved must do
    capsys.readouterr()
    assert evaluate_tfidf(**options, model=None, model_file=str(path)) == fresh
    assert "WARNING" not in capsys.readouterr().out
    assert {name: float(valid[name]) for name in fresh} == fresh


@pytest.mark.slow
def test_eval_model_alone_agrees_with_scikit_learn_on_the_sample_task(evaluate_tfidf):
    reference = Reference([turn.label.text for dialogue in sample_dialogues("train") for turn in dialogue.turns])
    ranks = [
        reference.rank(turn.text, [candidate.text for candidate in turn.candidates], turn.label.text)
        for dialogue in sample_dialogues("valid")
        for turn in dialogue.turns
    ]
    report = evaluate_tfidf(task="selection:sample")
    assert report["exs"] == len(ranks) == 400
    assert report["rank"] == pytest.approx(np.mean(ranks))
    assert report["R20@1"] == report["hits@1"] == pytest.approx(np.mean([rank == 1 for rank in ranks]))
    assert report["R20@5"] == report["hits@5"] == pytest.approx(np.mean([rank <= 5 for rank in ranks]))


def test_interactive_answers_with_a_fixed_candidate(make_weights, tmp_path, monkeypatch, capsys):
    (tmp_path / "fixed.txt").write_text("the dog\nmusic , rock\nsnow\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("i like rock\ndog ?\n[DONE]\n\nsnow ?\n"))
    fixed = str(tmp_path / "fixed.txt")
    Interactive.main(model="tfidf", model_file=make_weights(), fixed_candidates_path=fixed, loglevel="error")
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert re.findall(r"\[Tfidf\]: (.*)", shown) == ["music , rock", "the dog", "the dog", "snow"]


@pytest.mark.slow
def test_convai2_is_far_better_than_chance(data_path: Path, evaluate_tfidf):
    report = evaluate_tfidf(
        task="selection:convai2",
        datapath=str(data_path),
        num_examples=400,
        tfidf_max_examples=5000,
        tfidf_context="all",
        batchsize=16,
    )
    assert report["exs"] == pytest.approx(400, abs=16)
    assert report["R20@1"] > 0.25
