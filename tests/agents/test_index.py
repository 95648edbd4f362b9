"""`--index` and `--rerank` through ParlAI's scripts: the replies of scoring everything, found by a search."""

from __future__ import annotations

import json

import pytest
from parlai.agents.ranker.dialogue.indexed import find_rank, merge_equal_texts
from parlai.agents.ranker.dialogue.ranking import convert_metrics
from parlai.scripts.eval_model import EvalModel

from polyencoder import CheckpointError, ConfigError, Ranker
from polyencoder.evaluation import of_search
from polyencoder.index import Candidate, Hit
from polyencoder.index.faiss.search import FaissSearch
from polyencoder.index.open import open_index
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "bee", "owl", "fox"]
CONVERSATION = "\n[DONE]\nwhere is the owl ?\nis it really the owl ?\n[DONE]\nwhere is the cat ?\n"
QUESTIONS = [("where is", ""), ("tell me , is", "with you ")]
MODELS = ["biencoder", "polyencoder", "lateencoder"]


@pytest.fixture
def index_of(trained, tmp_path, labels):
    """(model, faiss=None) -> an index of the task's answers, which the library makes of the trained model's file."""

    def make(model: str, **settings) -> str:
        path, _ = trained(model)
        Ranker.from_pretrained(path, device="cpu").index(labels, tmp_path / f"{model}.index", **settings)
        return str(tmp_path / f"{model}.index")

    return make


@pytest.mark.parametrize(
    ("model", "repeat_blocking_heuristic"), [*((model, True) for model in MODELS), ("biencoder", False)]
)
def test_interactive(model, trained, index_of, candidates_file, copy_of, chat, repeat_blocking_heuristic):
    path, _ = trained(model)
    options = {"repeat_blocking_heuristic": repeat_blocking_heuristic}
    answers = chat(path, CONVERSATION, index=index_of(model), **options)
    assert len(answers) == 4
    assert answers == chat(copy_of(model), CONVERSATION, fixed_candidates_path=str(candidates_file), **options)
    assert answers[1] == "my owl is here ."
    assert (answers[2] != answers[1]) == repeat_blocking_heuristic


def test_labels_that_were_said_before(trained, evaluate, copy_of, labels, tmp_path):
    """In a third of the examples the label is an earlier turn. A search finds it; only the reply avoids it."""
    path, _ = trained("biencoder")
    questions = [f"{question} the {animal} {more}?" for question, more in QUESTIONS for animal in ANIMALS]
    texts = [*labels, *(question.upper() for question in questions)]
    Ranker.from_pretrained(path, device="cpu").index(texts, tmp_path / "all")
    (tmp_path / "all.txt").write_text("\n".join(texts) + "\n")
    fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(tmp_path / "all.txt")}
    for block in (False, True):
        options = {"repeat_blocking_heuristic": block}
        searched = evaluate(path, index=str(tmp_path / "all"), index_top_k=24, **options)
        scored = evaluate(copy_of("biencoder"), **fixed, **options)
        same = ("R24@1", "R24@5", "hits@1", "hits@5", "accuracy", "f1")
        assert {name: searched[name] for name in same} == {name: scored[name] for name in same}
        assert searched["R24@1"] == 1
        assert searched["accuracy"] == pytest.approx(2 / 3 if block else 1, abs=1e-4)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_data_without_candidates_needs_none(part, trained, index_of, tmp_path):
    """An index needs no drawn candidates and reads no training data: there may be none."""
    path, _ = trained("biencoder")
    pairs = [{"context": f"where is the {animal} ?", "response": f"my {animal} is here ."} for animal in ANIMALS]
    (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = {"task": "selection:jsonl", "selection_folder": str(tmp_path), "datatype": part, "loglevel": "error"}
    options = {"model_file": str(path), "index": index_of("biencoder"), **task}
    report = EvalModel.main(**options)
    assert float(report["exs"]) == len(ANIMALS)
    assert float(report["R8@1"]) == 1
    with pytest.raises(ConfigError, match="--num-negatives 3 has no effect with --index"):
        EvalModel.main(**options, num_negatives=3)


@mostly_long("faiss", ["ivf-flat", None], quick=1)
@pytest.mark.parametrize("model", MODELS)
def test_eval_model(model, faiss, trained, index_of, evaluate, copy_of, candidates_file):
    if faiss:
        pytest.importorskip("faiss")
    path, _ = trained(model)
    searched = evaluate(path, index=index_of(model, faiss=faiss), eval_candidates="fixed", hits_at="1,2,5")
    scored = evaluate(
        copy_of(model), fixed_candidates_path=str(candidates_file), eval_candidates="fixed", hits_at="1,2,5"
    )
    same = ["exs", "accuracy", "f1", "hits@1", "hits@2", "hits@5", "hits@100", "R8@1", "R8@2", "R8@5"]
    assert {name: searched[name] for name in same} == {name: scored[name] for name in same}
    assert searched["mrr@8"] == pytest.approx(scored["mrr"])
    assert searched["found_rank"] == pytest.approx(scored["rank"])
    assert searched["search_ms"] > 0
    assert not {"loss", "ppl", "mrr", "rank"} & searched.keys()  # which a search does not know


def test_how_faiss_searches(trained, index_of, evaluate, copy_of, candidates_file, monkeypatch):
    """All of the lists, and long ones, find what scoring everything does."""
    pytest.importorskip("faiss")
    path, _ = trained("polyencoder")
    search, exactness = FaissSearch.search, set()

    def noted(self, *args, **settings):
        results = search(self, *args, **settings)
        exactness.update(results.exactness)
        return results

    monkeypatch.setattr(FaissSearch, "search", noted)
    options = {"index": index_of("polyencoder", faiss="ivf-flat,nlist=4,nprobe=1"), "index_top_k": 2, "hits_at": "1,2"}
    evaluate(path, **options, index_effort=1, index_list_length=2)
    assert exactness
    assert "certified" not in exactness
    exactness.clear()
    report = evaluate(path, **options, index_effort=4, index_list_length=8)
    assert exactness == {"certified"}
    scored = evaluate(
        copy_of("polyencoder"), fixed_candidates_path=str(candidates_file), eval_candidates="fixed", hits_at="1,2"
    )
    assert {report[name] - scored[name] for name in ("R8@1", "R8@2")} == {0}


def test_a_model_that_was_trained_with_hard_negatives(trained, index_of, evaluate, copy_of):
    path, options = copy_of("biencoder"), {"index": index_of("biencoder")}
    expected = evaluate(trained("biencoder")[0], **options)
    opt = path.with_name("model.opt")
    opt.write_text(json.dumps(json.loads(opt.read_text()) | {"hard_negatives": 2, "hard_negatives_every": 5}))
    assert evaluate(path, **options)["hits@1"] == expected["hits@1"]


def test_what_lies_behind_the_first_k(trained, index_of, evaluate):
    path, _ = trained("polyencoder")
    report = evaluate(path, index=index_of("polyencoder"), index_top_k=2, hits_at="1,2,5")
    whole = evaluate(path, index=index_of("polyencoder"), hits_at="1,2,5")
    assert report["R8@1"] == report["hits@1"] == whole["R8@1"]
    assert report["R8@2"] == whole["R8@2"]
    assert report["hits@2"] == whole["hits@2"]
    assert "R8@5" not in report
    assert report["mrr@2"] <= whole["mrr@8"]


def test_metrics_of_one_example():
    def values(rank: int | None) -> dict[str, float]:
        metrics = convert_metrics(of_search(rank, 1000, top_k=20, hits_at=[1, 2, 50]))
        return {name: metric.value() for name, metric in metrics.items()}

    pairs = [(f"text {i}", -float(i)) for i in range(20)]
    assert values(find_rank("text 1", pairs)) == {
        "mrr@20": 0.5, "found_rank": 2, "R1000@1": 0, "R1000@2": 1, "hits@2": 1, "R1000@20": 1, "hits@20": 1
    }  # fmt: skip
    assert find_rank("text 1", [("text 1", 0.5), ("a", 0.5), ("b", 0.5), ("c", 0.1)]) == 3  # of equal scores the last
    assert values(find_rank("another", pairs)) == {
        "mrr@20": 0, "R1000@1": 0, "R1000@2": 0, "hits@2": 0, "R1000@20": 0, "hits@20": 0
    }  # fmt: skip


def test_a_text_of_several_entries_is_one_reply():
    hits = [Hit(str(i), text, 3.0 - i, None, "exact") for i, text in enumerate(["a", "a ", "b", "a"])]
    assert merge_equal_texts(hits) == [("a", 3.0), ("b", 1.0)]
    assert merge_equal_texts([hits[2]._replace(rerank_score=9.0), hits[1]]) == [("b", 9.0), ("a", 2.0)]


def test_re_ranking(trained, index_of, evaluate, chat, labels):
    """The cross-encoder, which has learned to prefer "here" to "gone", brings the answers to the front."""
    path, _ = trained("polyencoder")
    cross, _ = trained("crossencoder")
    folder = index_of("polyencoder")
    departed = [Candidate(None, label.replace("here", "gone")) for label in labels]
    ranker = Ranker.from_pretrained(path, device="cpu")
    open_index(folder, ranker).add(departed)
    report = evaluate(path, index=folder, rerank=str(cross), rerank_k=16)
    assert report["rerank_ms"] > 0
    answers = chat(path, CONVERSATION, index=folder, rerank=str(cross), rerank_k=16, repeat_blocking_heuristic=False)
    reranker = Ranker.from_pretrained(cross, device="cpu")
    expected = ranker.search("where is the cat ?", folder, top_k=1, rerank=reranker, rerank_k=16)
    assert answers[-1] == expected[0].text
    assert set(answers) <= set(labels)


def test_words_beside_vectors(copy_of, evaluate, chat, labels, tmp_path):
    """In the order that the library has, with its weight."""
    path = copy_of("biencoder")
    ranker, folder = Ranker.from_pretrained(path, device="cpu"), str(tmp_path / "words")
    ranker.index([*labels, "a chair 4711", "is the dog ?"], folder, words=True)
    report = evaluate(path, index=folder, index_hybrid=True, index_top_k=8)
    assert (report["exs"], report["R10@1"]) == (24, 1)
    options = {"index": folder, "index_hybrid": True, "repeat_blocking_heuristic": False}
    answers = chat(path, CONVERSATION, **options)
    expected = ranker.search("where is the cat ?", folder, top_k=1, hybrid=True, keep_turns=True)
    assert answers[-1] == expected[0].text
    alone = chat(path, CONVERSATION, index=folder, index_words_only=True, repeat_blocking_heuristic=False)
    assert alone[-1] == ranker.search("where is the cat ?", folder, top_k=1, words_only=True, keep_turns=True)[0].text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rerank": "model"}, "--rerank model: is an option of searches, so it needs --index"),
        ({"index_effort": 64}, "--index-effort 64: is an option of searches, so it needs --index"),
        ({"index": "INDEX", "index_top_k": 0}, "--index-top-k 0: must be at least 1"),
        ({"index": "INDEX", "index_words_only": True, "min_probability": "0.3"}, "--min-probability is for searches"),
        ({"index": "INDEX", "add_label_to_fixed_cands": True}, "--add-label-to-fixed-cands cannot be used with"),
        ({"index": "INDEX", "eval_candidates": "inline"}, "--index replaces fixed candidates, not --eval-candidates"),
    ],
)
def test_options_that_contradict_each_other(trained, index_of, evaluate, options, message):
    path, _ = trained("biencoder")
    if "index" in options:
        options = {**options, "index": index_of("biencoder")}
    with pytest.raises(ConfigError, match=message):
        evaluate(path, **options)


def test_an_index_that_cannot_be_used(trained, index_of, evaluate):
    path, _ = trained("biencoder")
    with pytest.raises(CheckpointError, match="nowhere: no index"):
        evaluate(path, index="nowhere")
    with pytest.raises(CheckpointError, match="made by another model"):
        evaluate(path, index=index_of("polyencoder"))


def test_an_index_has_no_use_in_training(copy_of, labels, tmp_path, train):
    path = copy_of("biencoder")
    Ranker.from_pretrained(path, device="cpu").index(labels, tmp_path / "index")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="was built by the model before"):
        train("biencoder", path, index=str(tmp_path / "index"))
    assert path.read_bytes() == before
