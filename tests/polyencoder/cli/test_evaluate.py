"""`polyencoder evaluate` with judgements: a BEIR folder indexed, searched, reranked and compared; errors name lines."""

from __future__ import annotations

import json

import pytest

from polyencoder.data.contexts import read_queries
from polyencoder.data.trec import read_qrels, read_run
from polyencoder.errors import ConfigError, InputError
from polyencoder.evaluation.retrieval import evaluate_retrieval
from polyencoder.index.open import open_index
from polyencoder.ranker import Ranker
from tests.commands import command_fails, invoke, run_command

pytest.importorskip("ir_measures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model, tokenizer, sentences):
    """A model, a BEIR folder and its index."""
    from polyencoder.text import TextEncoder

    root = tmp_path_factory.mktemp("beir")
    for name, kind in (("model", "poly"), ("cross", "cross")):
        model = make_model(kind)
        Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu").save_pretrained(root / name)
    (root / "data" / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "a dog" if i == 0 else "", "text": text} for i, text in enumerate(sentences)]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(sentences[:4])]
    for name, records in (("corpus", corpus), ("queries", queries)):
        (root / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (root / "data" / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td2\t2\nq1\td1\t1\nq2\td7\t1\n"
    )
    run_command("index", "-m", root / "model", "-c", root / "data/corpus.jsonl", "-o", root / "index")
    return root


@pytest.fixture
def beir(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


EVALUATE = ["evaluate", "-m", "model", "--beir", "data", "-i", "index"]


@pytest.mark.slow
def test_from_a_beir_folder_to_a_run_and_back(beir, tmp_path):
    run = tmp_path / "run.trec"
    report = json.loads(run_command(*EVALUATE, "--run-out", run, "--json", "--measures", "nDCG@3", "AP").stdout)
    ranker = Ranker.from_pretrained("model", device="cpu")
    queries = read_queries("data/queries.jsonl")
    qrels = read_qrels("data/qrels/test.tsv")
    same = evaluate_retrieval(ranker, queries, qrels, index=open_index("index", ranker), measures=["nDCG@3", "AP"])
    assert report == json.loads(json.dumps(same.report()))
    assert read_run(run) == same.run
    assert (report["queries"], report["unjudged"], report["missing"]) == (3, 1, 0)

    plain = ["--qrels", "data/qrels/test.tsv", "--queries", "data/queries.jsonl"]
    again = ["evaluate", "-m", "model", *plain, "--rerank-run", run, "--compare", run]
    for source in (["--index", "index"], ["--corpus", "data/corpus.jsonl"]):
        output = run_command(*again, *source, "--json", "--measures", "nDCG@3", "AP").stdout
        reranked = json.loads(output)
        assert reranked["nDCG@3"] == pytest.approx(report["nDCG@3"])
        assert reranked["compared"]["p"] == {"nDCG@3": 1.0, "AP": 1.0}
    output = run_command("evaluate", "-m", "cross", "--beir", "data", "--rerank-run", run, "--compare", run).stdout
    assert output.splitlines()[0] == "3 judged queries"
    assert [line.split()[0] for line in output.splitlines()[1:5]] == ["nDCG@10", "RR@10", "AP", "R@100"]
    assert f"{run}: " in output
    assert ", p " in output
    assert output.splitlines()[-1] == "1 queries have no judgement: left out"
    command_fails(ConfigError, "exists already", *EVALUATE, "--run-out", run)
    run_command(*EVALUATE, "--run-out", run, "--overwrite")


def test_only_the_texts_that_are_reranked_are_needed(beir, tmp_path):
    """Others may be absent, or empty, as in some of BEIR's."""
    (tmp_path / "run").write_text("q0 Q0 q0 1 3 x\nq0 Q0 d0 2 2 x\nq0 Q0 beyond 3 1 x\nunjudged Q0 other 1 1 x\n")
    lines = (beir / "data/corpus.jsonl").read_text().splitlines()[:2]
    (tmp_path / "corpus.jsonl").write_text("\n".join([*lines, '{"_id": "e", "title": "", "text": ""}']))
    reranking = ["--rerank-run", tmp_path / "run", "--corpus", tmp_path / "corpus.jsonl", "--ignore-identical-ids"]
    plain = ["--qrels", "data/qrels/test.tsv", "--queries", "data/queries.jsonl", "--measures", "RR", "--json"]
    done = run_command("evaluate", "-m", "cross", *plain, *reranking, "--depth", "1")
    assert json.loads(done.stdout)["RR"] == pytest.approx(1 / 3)
    assert "1 bad record was left out" in done.stderr
    message = "run, line 3: the document 'beyond' is not in .*corpus.jsonl; 1 bad record was left out"
    command_fails(InputError, message, "evaluate", "-m", "cross", *plain, *reranking, "--depth", "2")


def test_the_report_is_printed_though_the_run_cannot_be_written(beir, tmp_path, monkeypatch):
    """Another process has written a run of this name during the search."""
    run = tmp_path / "run.trec"

    def searched(*args, **options):
        run.write_text("theirs")
        return evaluate_retrieval(*args, **options)

    monkeypatch.setattr("polyencoder.evaluation.retrieval.evaluate_retrieval", searched)
    done = invoke(*EVALUATE, "--run-out", run)
    assert done.exit_code == 1
    assert done.stdout.startswith("3 judged queries\n")
    assert "run.trec: cannot be written (another process has written it meanwhile)" in done.stderr
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run.trec", "theirs")]
    assert invoke(*EVALUATE, "--run-out", run, "--overwrite").exit_code == 0
    assert read_run(run)


@pytest.mark.slow
def test_a_measure_that_fails_on_the_results_loses_nothing(beir, tmp_path):
    """Accuracy divides by 0 if all results of a query are right."""
    run, qrels = tmp_path / "run.trec", tmp_path / "qrels"
    command = ["evaluate", "-m", "model", "--queries", "data/queries.jsonl", "-i", "index", "--depth", "1"]
    run_command(*EVALUATE, "--depth", "1", "--run-out", run)
    qrels.write_text("".join(f"{query} 0 {id_} 1\n" for query, hits in read_run(run).items() for id_ in hits))
    again = tmp_path / "again.trec"
    done = invoke(*command, "--qrels", qrels, "--measures", "RR", "Accuracy", "--run-out", again)
    assert done.exit_code != 0
    assert "RR  1.0000" in done.stdout
    assert "ir_measures cannot compute 'Accuracy' here: float division by zero" in done.stderr
    assert read_run(again) == read_run(run)
    alone = invoke(*command, "--qrels", qrels, "--measures", "Accuracy", "--json")
    assert (alone.exit_code, [*json.loads(alone.stdout)["failed"]]) == (done.exit_code, ["Accuracy"])


@pytest.mark.slow
def test_lines_at_fault_are_named(beir, tmp_path):
    (tmp_path / "qrels").write_text("q0 0 d0 1\nq9 0 d0 1\n")
    (tmp_path / "run").write_text("q0 Q0 d0 1 2 x\nq0 Q0 x 2 1 x\n")
    (tmp_path / "other").write_text("q0 Q0 x 1 2 x\n")
    queries = ["--queries", "data/queries.jsonl"]
    command_fails(
        InputError, "qrels, line 2: the query 'q9' is not in data/queries.jsonl",
        "evaluate", "-m", "model", "-i", "index", "--qrels", tmp_path / "qrels", *queries,
    )  # fmt: skip
    for source in (["--index", "index"], ["--corpus", "data/corpus.jsonl"], []):
        rerank = ["evaluate", "-m", "cross", "--beir", "data", "--rerank-run", tmp_path / "run", *source]
        command_fails(InputError, "run, line 2: the document 'x' is not in (index|data/corpus.jsonl)", *rerank)
    command_fails(InputError, "it is of another corpus", *EVALUATE, "--compare", tmp_path / "other")
    command_fails(InputError, "no such file", *EVALUATE, "--split", "dev")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beir", "data", "-i", "index", "-d", "x.jsonl"], "data is not read with beir"),
        (["--beir", "data", "-i", "index", "--num-negatives", "3"], "num_negatives is read only with data"),
        (["--beir", "data", "-i", "index", "--baseline", "tfidf"], "baseline is read only with data"),
        (["-d", "x.jsonl", "--run-out", "run"], "run_out is read only with qrels"),
        (["-d", "x.jsonl", "--measures", "AP"], "measures is read only with qrels"),
        (["--qrels", "x", "-i", "index"], "give --queries"),
        (["--beir", "data"], "give --index, or --rerank-run"),
        (["--beir", "data", "--rerank-run", "x", "--exactness", "exact"], "exactness is not read with rerank_run"),
        (["--beir", "data", "-i", "index", "--measures", "nDCG10"], "no measure 'nDCG10'"),
        ([], "give --data, examples to rank, or --qrels or --beir"),
    ],
)
def test_flags_without_a_meaning_are_refused(beir, flags, message):
    command_fails(ConfigError, message, "evaluate", "-m", "model", *flags)
