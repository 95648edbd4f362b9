"""MTEB's own evaluation of a ranker, on a task of local data: its measures are those of the ranker's order."""

from __future__ import annotations

import math

import pytest

from polyencoder.errors import InputError
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

QUERIES = {
    "q1": "do you have any pets ?",
    "q2": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "i like to ski ."}],
}
DOCUMENTS = {
    "d1": "i have two dogs and a cat .",
    "d2": "i am a teacher .",
    "d3": "hello",
    "d4": "",
    "d5": "i like to ski .",
}
FACTS = {"name": "Local", "description": "made for this test", "reference": None, "category": "t2t"}
FACTS |= {"dataset": {"path": "local", "revision": "1"}, "eval_splits": ["test"], "eval_langs": ["eng-Latn"]}
FACTS |= {"main_score": "ndcg_at_10"}
RIGHT = {"q1": {"d2": 1}, "q2": {"d5": 1, "d1": 1}}


@pytest.fixture(scope="module", autouse=True)
def installed():
    """Imported by these tests alone: it takes seconds, and every process collects this file."""
    pytest.importorskip("mteb")


@pytest.fixture
def make_task():
    """(top_ranked) -> a task of MTEB over the documents."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.abstasks.task_metadata import TaskMetadata

    def make(top_ranked=None, queries=QUERIES):
        class Task(AbsTaskRetrieval):
            metadata = TaskMetadata(**FACTS, type="Retrieval" if top_ranked is None else "Reranking")

            def load_data(self, num_proc=None, **kwargs):
                split = RetrievalSplitData(
                    queries=Dataset.from_list([{"id": id_, "text": text} for id_, text in queries.items()]),
                    corpus=Dataset.from_list([{"id": i, "text": t, "title": ""} for i, t in DOCUMENTS.items()]),
                    relevant_docs={id_: RIGHT[id_] for id_ in queries},
                    top_ranked=top_ranked,
                )
                self.dataset, self.data_loaded = {"default": {"test": split}}, True

        return Task()

    return make


def evaluated(ranker, task):
    import mteb

    from polyencoder.adapters.mteb import MtebRanker

    results = mteb.evaluate(MtebRanker(ranker), task, cache=None, show_progress_bar=False)
    (result,) = results.task_results
    return result.scores["test"][0]


def ndcg(order, right):
    gains = sum(1 / math.log2(rank + 2) for rank, id_ in enumerate(order[:10]) if id_ in right)
    return gains / sum(1 / math.log2(rank + 2) for rank in range(len(right)))


@mostly_long("architecture", ["poly", "bi", "late", "cross"], quick=1)
@pytest.mark.parametrize("reranks", [False, True])
def test_its_measures_are_those_of_the_rankers_order(make_ranker, make_task, architecture, reranks):
    ranker = make_ranker(architecture)
    text = {id_: value or "." for id_, value in DOCUMENTS.items()}
    among = {id_: [document for document in text if document != "d3"] if reranks else list(text) for id_ in ("q1",)}
    task = make_task(among if reranks else None, {"q1": QUERIES["q1"]})
    if architecture == "cross" and not reranks:
        with pytest.raises(InputError, match="a cross-encoder cannot search a corpus"):
            evaluated(ranker, task)
        return
    order = [among["q1"][match.index] for match in ranker.rank(QUERIES["q1"], [text[id_] for id_ in among["q1"]])]
    assert evaluated(ranker, task)["ndcg_at_10"] == pytest.approx(ndcg(order, RIGHT["q1"]), abs=1e-4)


def test_dialogues_stay_dialogues(make_ranker):
    from datasets import Dataset

    from polyencoder.adapters.mteb import MtebRanker

    ranker = make_ranker("poly")
    model = MtebRanker(ranker)
    model.index([{"id": id_, "text": text, "title": ""} for id_, text in DOCUMENTS.items()])
    queries = Dataset.from_list([{"id": "q2", "text": QUERIES["q2"]}])
    ranking = model.search(queries, top_k=3)["q2"]
    best = ranker.rank(QUERIES["q2"], [text or "." for text in DOCUMENTS.values()], top_k=3)
    assert [*ranking] == [[*DOCUMENTS][match.index] for match in best]
    assert [*ranking.values()] == pytest.approx([match.score for match in best], rel=1e-4)
