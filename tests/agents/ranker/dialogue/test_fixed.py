"""Fixed candidates: read from a file, encoded once for each state of the model, never stale."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import nullcontext

import pytest
from parlai.agents.ranker.dialogue import fixed
from parlai.agents.ranker.dialogue.fixed import FixedSource, read_candidates
from parlai.core.opt import Opt

from polyencoder import Ranker
from polyencoder.errors import InputError
from polyencoder.index import build_index
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

RANKING = ["accuracy", "hits@5", "R8@1", "rank", "mrr"]


def same(actual: dict[str, float], expected: dict[str, float]) -> bool:
    loss = pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)  # a softmax in float32 resolves losses near 0 by 1e-7
    return all(actual[name] == expected[name] for name in RANKING) and actual["loss"] == loss


@pytest.fixture
def options(candidates_file) -> dict[str, str]:
    return {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}


# ---- never stale


@mostly_long(("model", "source"), [("biencoder", "fixed"), ("polyencoder", "batch")], quick=1)
def test_vectors_are_as_new_as_the_model(model, source, train, evaluate, candidates_file, tmp_path):
    """The candidates of each example are those of the file, in its order: inline and fixed must agree."""
    options = {"candidates": source, "eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
    report = train(model, tmp_path / "model", **options)
    assert report["accuracy"] > 0.8
    assert not list(tmp_path.glob("*.index"))  # what training would leave is stale a step later
    inline = evaluate(tmp_path / "model", eval_candidates="inline")
    assert same(report, inline)
    for _ in range(2):  # the vectors are made, then read
        assert same(evaluate(tmp_path / "model", eval_candidates="fixed"), inline)


@pytest.mark.long
def test_vectors_follow_a_model_that_is_trained_further(train, evaluate, options, tmp_path):
    path = tmp_path / "model"
    train("biencoder", path, num_epochs=1.1, validation_every_n_epochs=1.0, **options)
    evaluate(path, **options)  # writes vectors of the half-trained model
    report = train("biencoder", path, num_epochs=12.1, **options)
    assert same(report, evaluate(path, eval_candidates="inline"))
    assert same(report, evaluate(path, **options))


def test_an_edited_file_is_noticed(copy_of, make_agent, respond, candidates_file, labels, encoded):
    path, turn = copy_of("biencoder"), {"text": "where is the owl ?"}
    options = {"model_file": str(path), "eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}

    def ranking() -> list[str]:
        return respond(make_agent("biencoder", datatype="valid", **options), turn)[0]["text_candidates"]

    first = ranking()
    assert first[0] == "my owl is here ."
    candidates_file.write_text("\n".join(reversed(labels)))
    assert ranking() == first
    candidates_file.write_text("\n".join([*labels[:6], "no owl", *labels[7:]]))
    changed = ranking()
    assert [text for text in changed if text != "no owl"] == first[1:]
    assert len(encoded) == 3


@pytest.mark.long
def test_two_models_in_one_folder_do_not_share_vectors(copy_of, trained, train, evaluate, options, tmp_path):
    copy_of("biencoder", "model.v1")
    train("biencoder", tmp_path / "model.v2", num_epochs=1.1, validation_every_n_epochs=1.0)
    inline = {name: evaluate(tmp_path / name) for name in ("model.v1", "model.v2")}
    assert not same(inline["model.v1"], inline["model.v2"])
    for name in ("model.v1", "model.v2", "model.v1", "model.v2"):
        assert same(evaluate(tmp_path / name, **options), inline[name])
    written = sorted(path.name for path in tmp_path.glob("*.index"))
    assert written == ["model.v1.answers.txt.index", "model.v2.answers.txt.index"]


# ---- the index of vectors


@pytest.mark.long
def test_vectors_in_a_folder_of_ones_own(copy_of, train, evaluate, candidates_file, options, tmp_path, encoded):
    path, vectors = copy_of("biencoder"), tmp_path / "elsewhere" / "vectors"
    options = {**options, "fixed_candidate_vecs": str(vectors)}
    first = evaluate(path, **options)
    assert vectors.exists()
    assert same(evaluate(path, **options), first)
    assert len(encoded) == 1
    train("biencoder", tmp_path / "other", num_epochs=1.1, validation_every_n_epochs=1.0)
    encoded.clear()
    with pytest.raises(InputError, match="another model.*nothing in it was changed") as error:
        evaluate(tmp_path / "other", **options)
    assert str(error.value).startswith(f"--fixed-candidate-vecs {vectors}: ")
    candidates_file.write_text(candidates_file.read_text() + "one more\n")
    with pytest.raises(InputError, match=f"--fixed-candidate-vecs {vectors}: .*other candidates"):
        evaluate(path, **options)
    candidates_file.write_text(candidates_file.read_text().replace("one more\n", ""))
    assert same(evaluate(path, **options), first)
    assert encoded == []


def test_vectors_in_8_bits(copy_of, evaluate, options, labels, tmp_path):
    """An index has them that `polyencoder index --dtype int8` built."""
    path, vectors = copy_of("biencoder"), tmp_path / "vectors"
    build_index(str(vectors), labels, Ranker.from_pretrained(path, device="cpu"), dtype="int8")
    actual, expected = evaluate(path, fixed_candidate_vecs=str(vectors), **options), evaluate(path, **options)
    assert actual["loss"] == pytest.approx(expected["loss"], rel=0.02)


def test_vectors_in_an_empty_folder_of_ones_own(copy_of, evaluate, options, tmp_path, encoded):
    (tmp_path / "vectors").mkdir()
    evaluate(copy_of("biencoder"), fixed_candidate_vecs=str(tmp_path / "vectors"), **options)
    assert os.listdir(tmp_path / "vectors")


@pytest.mark.parametrize("named", [False, True])
def test_a_place_that_cannot_be_written(named, copy_of, evaluate, options, tmp_path, encoded, monkeypatch):
    """Beside a read-only model the vectors stay in memory; a folder that was asked for is an error."""

    def refuse(folder, *_, **__):
        raise InputError(f"{folder}: cannot be written (read-only file system)") from OSError(errno.EROFS, "read-only")

    path = copy_of("biencoder")
    warnings = []
    monkeypatch.setattr(fixed, "build_index", refuse)
    monkeypatch.setattr(fixed.logging, "warning", warnings.append)
    if named:
        with pytest.raises(InputError, match="elsewhere: cannot be written"):
            evaluate(path, fixed_candidate_vecs=str(tmp_path / "elsewhere"), **options)
        return
    assert same(evaluate(path, **options), evaluate(path))
    (warning,) = [text for text in warnings if "fixed candidates" in text]
    assert "only kept in memory" in warning
    assert "model.answers.txt.index: cannot be written" in warning
    assert [len(texts) for texts in encoded[:1]] == [8]


def test_replace_makes_vectors_anew_and_so_does_a_damaged_index(copy_of, evaluate, options, tmp_path, encoded):
    path = copy_of("biencoder")
    first = evaluate(path, **options)
    assert same(evaluate(path, fixed_candidate_vecs="reuse", **options), first)
    assert len(encoded) == 1
    assert same(evaluate(path, fixed_candidate_vecs="replace", **options), first)
    assert len(encoded) == 2
    for number, damaged in enumerate(("vectors-*.int8.npy", "index.sqlite"), start=3):
        (file,) = (tmp_path / "model.answers.txt.index").glob(damaged)
        file.write_bytes(file.read_bytes()[:-64] if damaged != "index.sqlite" else b"")
        assert same(evaluate(path, **options), first)
        assert len(encoded) == number
    assert same(evaluate(path, **options), first)
    assert len(encoded) == number  # what was made anew is an index


def test_it_is_an_index_like_any_other(copy_of, evaluate, options, labels, tmp_path):
    """Others can search what the agent has made, and the agent uses what they have made."""
    path = copy_of("polyencoder")
    evaluate(path, bf16=True, **options)
    ranker = Ranker.from_pretrained(path, device="cpu")
    hits = ranker.search("where is the owl ?", tmp_path / "model.answers.txt.index", top_k=8)
    ranked = ranker.rank("where is the owl ?", labels)
    assert [hit.text for hit in hits] == [match.text for match in ranked]
    assert [hit.score for hit in hits] == pytest.approx([match.score for match in ranked], rel=1e-4)


def test_candidates_in_several_files_of_vectors(copy_of, evaluate, options, labels, encoded, tmp_path):
    """`polyencoder index --shard-size 3` makes them: each is scored where it lies."""
    path = copy_of("polyencoder")
    Ranker.from_pretrained(path, device="cpu").index(labels, tmp_path / "mine", shard_size=3)
    encoded.clear()
    sharded = evaluate(path, fixed_candidate_vecs=str(tmp_path / "mine"), **options)
    assert encoded == []
    assert same(sharded, evaluate(path))


def test_what_is_no_index_stays(copy_of, evaluate, options, tmp_path):
    (tmp_path / "folder").mkdir()
    for mine, file in (("folder", "folder/thesis.txt"), ("file", "file")):
        (tmp_path / file).write_text("important")
        with pytest.raises(InputError, match=f"{mine}: is not an index of these .* does not exist yet"):
            evaluate(copy_of("biencoder"), fixed_candidate_vecs=str(tmp_path / mine), **options)
        assert (tmp_path / file).read_text() == "important"


def test_without_encode_candidate_vecs_nothing_is_written(copy_of, trained, evaluate, options, tmp_path):
    path = copy_of("biencoder")
    report = evaluate(path, encode_candidate_vecs=False, **options)
    assert same(report, trained("biencoder")[1])
    assert not list(tmp_path.glob("*.index"))


def test_only_one_process_of_many_writes_the_index(monkeypatch, make_ranker, tmp_path):
    monkeypatch.setattr(fixed, "is_primary_worker", lambda: False)
    (tmp_path / "candidates.txt").write_text("a\nb\n")
    options = {"fixed_candidates_path": str(tmp_path / "candidates.txt"), "model_file": str(tmp_path / "model")}
    source, ranker = FixedSource("fixed", Opt({**options, "encode_candidate_vecs": True})), make_ranker("bi")
    source.open(lambda: ranker, autocast=nullcontext, learns=False)
    (vectors,) = source.list_vectors(ranker)
    assert len(vectors) == 2
    assert os.listdir(tmp_path) == ["candidates.txt"]


# ---- the file of candidates


def test_candidates_are_the_different_lines_in_their_order(tmp_path):
    path = tmp_path / "candidates.txt"
    path.write_bytes("\ufeffb\r\n\n  a  \nb\n\u00e9\u2028still this line\n".encode())
    assert read_candidates(str(path)) == ["b", "a", "\u00e9\u2028still this line"]


def test_a_file_of_records_has_them_in_its_texts(tmp_path):
    path = tmp_path / "candidates.jsonl"
    path.write_text('{"text": "a", "id": "1"}\n{"text": "b"}\n{"text": "a "}\n', encoding="utf-8")
    assert read_candidates(str(path)) == ["a", "b"]


@pytest.mark.parametrize(
    "content", [None, b"", b"\n \n", b"\xff\xfe\x00a", b'{"text": "a"}\n', b'title\n{"text": "a"}\n']
)
def test_a_bad_file_is_named(content, make_agent, tmp_path):
    path = tmp_path / "candidates.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="^--fixed-candidates-path ") as error:
        make_agent("biencoder", eval_candidates="fixed", fixed_candidates_path=str(path))
    assert str(path) in str(error.value)


# ---- a label that is not among them


def test_a_label_beside_the_fixed_candidates_is_its_own_examples_alone(make_agent, respond, tmp_path):
    path = tmp_path / "candidates.txt"
    path.write_text("first\nsecond\n")
    options = {"datatype": "valid", "eval_candidates": "fixed", "fixed_candidates_path": str(path)}
    agent = make_agent("biencoder", **options, add_label_to_fixed_cands=True)
    labels = ("third", "fourth", "second", "third")
    replies = respond(agent, *({"text": "hello", "eval_labels": [label]} for label in labels))
    seen = [set(reply["text_candidates"]) for reply in replies]
    fixed_ones = {"first", "second"}
    assert seen == [fixed_ones | {"third"}, fixed_ones | {"fourth"}, fixed_ones, fixed_ones | {"third"}]
    assert ["R3@1" in reply["metrics"] for reply in replies] == [True, True, False, True]
    assert ["R2@1" in reply["metrics"] for reply in replies] == [False, False, True, False]
    assert {"first", "second"} == set(respond(agent, {"text": "hello"})[0]["text_candidates"])


@pytest.mark.parametrize("model", ["biencoder", "crossencoder"])
@pytest.mark.parametrize("part", ["labels", "eval_labels"])
def test_a_label_that_is_not_a_fixed_candidate_is_an_error(model, part, make_agent, respond, candidates_file):
    options = {"candidates": "fixed", "eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
    turns = [{"text": "hello", part: ["unheard of"]}, {"text": "hello", part: ["my cat is here ."]}]
    with pytest.raises(InputError, match="not among the fixed candidates .*--add-label-to-fixed-cands true") as error:
        respond(make_agent(model, **options), *turns)
    assert "unheard of" in str(error.value)
    assert "--ignore-bad-candidates true" in str(error.value)
    agent = make_agent(model, ignore_bad_candidates=True, **options)
    replies = respond(agent, *turns)
    assert agent.global_metrics.report()["bad_examples"].value() == 1
    if part == "eval_labels":
        assert "text" not in replies[0]
        assert replies[1]["metrics"]["rank"].value() <= 8


@pytest.mark.long
def test_training_with_the_label_added(train, evaluate, tmp_path):
    path = tmp_path / "negatives.txt"
    path.write_text("the weather is fine .\ni do not know .\n")
    options = {"candidates": "fixed", "eval_candidates": "fixed", "fixed_candidates_path": str(path)}
    options |= {"add_label_to_fixed_cands": True, "num_epochs": 2.1, "validation_every_n_epochs": 1.0}
    report = train("biencoder", tmp_path / "model", **options)
    assert report["R3@1"] > 0.9
    assert same_ranks(evaluate(tmp_path / "model", batchsize=1), evaluate(tmp_path / "model", batchsize=8))


def same_ranks(actual: dict[str, float], expected: dict[str, float]) -> bool:
    return all(actual[name] == expected[name] for name in ("accuracy", "rank", "mrr", "R3@1"))


def test_a_copied_candidates_file_serves_the_copied_model(copy_of, evaluate, candidates_file, tmp_path, encoded):
    """What lies beside the model under another folder's path is found again: the name counts, not the folder."""
    path = copy_of("biencoder")
    evaluate(path, eval_candidates="fixed", fixed_candidates_path=str(candidates_file))
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in tmp_path.glob("model*"):
        (shutil.copytree if file.is_dir() else shutil.copy)(file, moved / file.name)
    shutil.copy(candidates_file, moved)
    evaluate(moved / "model", eval_candidates="fixed", fixed_candidates_path=str(moved / "answers.txt"))
    assert len(encoded) == 1


def test_what_a_late_interaction_encoder_reads_of_fixed_candidates_is_read_once(
    make_agent, respond, candidates_file, labels, monkeypatch
):
    """It is read anew once the model has changed."""
    fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(candidates_file)}
    agent, read = make_agent("lateencoder", **fixed), []
    inner = agent.ranker.read_candidates
    monkeypatch.setattr(agent.ranker, "read_candidates", lambda tokens: read.append(len(tokens)) or inner(tokens))
    question = {"text": "where is the cat ?", "eval_labels": [labels[0]]}
    respond(agent, question)
    assert sum(read) == len(labels)
    respond(agent, question, {**question, "text": "hello"})
    assert sum(read) == len(labels)
    respond(agent, *[{"text": f"hello {i}", "labels": [labels[i]]} for i in range(2)])
    read.clear()
    respond(agent, question)
    assert sum(read) == len(labels)
