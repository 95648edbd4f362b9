"""Sources of candidates: chosen by the options, one contract for training and answers, without a model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parlai.agents.ranker.dialogue import choice
from parlai.agents.ranker.dialogue.choice import INDEX, build_source, check_sources
from parlai.agents.ranker.dialogue.sources import Source
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.core.torch_agent import Batch

from polyencoder.errors import ConfigError, InputError
from tests.parameters import mostly_long

TEXTS = st.sampled_from("abcdef")
BATCHES = st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=5)
FIXED = ["c", "a", "z"]


def source(name: str, **options) -> Source:
    return build_source(name, Opt(options))


@pytest.fixture(scope="module")
def fixed_options(tmp_path_factory):
    path = tmp_path_factory.mktemp("fixed") / "fixed.txt"
    path.write_text("\n".join(FIXED), encoding="utf-8")
    return {"fixed_candidates_path": str(path), "add_label_to_fixed_cands": True, "encode_candidate_vecs": True}


@pytest.mark.slow
@mostly_long("name", ["batch", "inline", "batch-all-cands", "fixed"], quick=2)
@given(rows=BATCHES)
def test_candidates_of_a_batch_are_ranked_by_score(name, rows, fixed_options):
    """Against sets and sorts: the candidates of each example, the rank of its label, and the N of its metrics."""
    labels = [texts[-1] for texts in rows]
    expected = {
        "batch": [set(labels)] * len(rows),
        "inline": [set(texts) for texts in rows],
        "batch-all-cands": [{text for texts in rows for text in texts}] * len(rows),
        "fixed": [{*FIXED, label} for label in labels],
    }[name]
    candidate_source = source(name, **fixed_options)

    def scorer(batch: Batch, pool) -> torch.Tensor:
        """The earlier letter has the higher score."""
        numbers = torch.tensor([-float(ord(text)) for text in pool.texts])
        return numbers.expand(len(rows), -1) if pool.index is None else numbers[pool.index]

    batch = Batch(labels=labels, candidates=rows, right=None)
    candidate_source._compute_scores = scorer
    candidate_source._list_keys = lambda pool: pool.texts
    ranked = candidate_source.answer(batch, top_k=100)
    if all(len(texts) == 1 for texts in expected):
        assert ranked is None
        return
    for hits, metrics, texts, label, row in zip(ranked.results, ranked.metrics, expected, labels, rows, strict=True):
        assert [text for text, _ in hits] == sorted(texts)
        assert metrics["rank"].value() == 1 + sorted(texts).index(label)
        n = {"inline": len(row), "fixed": len(texts)}.get(name)
        assert (f"R{n}@1" in metrics) == (n is not None and n > 1)


def test_fixed_candidates_are_those_of_the_file(fixed_options):
    fixed = source("fixed", repeat_blocking_heuristic=True, **fixed_options)
    assert (fixed.among, fixed.blocks_repeats) == ({"c": 0, "a": 1, "z": 2}, True)
    assert not source("batch", repeat_blocking_heuristic=True).blocks_repeats


def test_an_index_lists_nothing_for_training():
    with pytest.raises(ConfigError, match="leave it out in training"):
        source(INDEX).build_pool(Batch(labels=["a"], candidates=None, right=None))


@pytest.mark.parametrize(
    "options",
    [{"task": "selection:sample"}, *({"model_file": "model", "task": task} for task in ("interactive", "self_chat"))],
)
def test_fixed_candidates_need_a_file_or_a_task_and_a_model_beside_which_to_write_one(options):
    with pytest.raises(InputError, match="give --fixed-candidates-path"):
        source("fixed", **options)


def test_an_unknown_source_is_named():
    with pytest.raises(InputError, match="'vocab' are not supported; use batch, inline or batch-all-cands"):
        source("vocab").build_pool(Batch(labels=["a"], candidates=None, right=None))


def test_in_a_conversation_the_flag_of_candidates_is_another():
    of_interactive = {"interactive_mode": True, "local_human_candidates_file": None}
    problem = source("inline", **of_interactive).find_problem(Message({"text": "hello"}))
    assert "which --interactive-candidates inline needs" in problem
    assert problem.endswith("or give them in --local-human-candidates-file FILE")
    problem = source("inline", interactive_mode=True).find_problem(Message({"text": "hello"}))  # as in self_chat
    assert problem.endswith("use --interactive-candidates fixed with --fixed-candidates-path FILE")


@pytest.mark.parametrize(
    ("flags", "by"), [({"interactive_candidates": "fixed"}, " (--interactive-candidates)"), ({}, "")]
)
def test_a_conversation_does_not_read_eval_candidates(flags, by, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(choice.logging, "warning", warnings.append)
    chat = {"interactive_mode": True, "candidates": "batch", **flags}
    for candidates in ("fixed", "inline"):
        check_sources(Opt(chat, eval_candidates=candidates, override={"eval_candidates": candidates}), in_loop=False)
    assert warnings == [f"--eval-candidates inline is not read in a conversation, whose candidates are fixed{by}"]


@pytest.mark.parametrize(
    ("options", "unread"),
    [
        ({"eval_candidates": "inline"}, "is not read with --eval-candidates inline: give --eval-candidates fixed"),
        ({"eval_candidates": "fixed"}, None),
        ({"eval_candidates": "inline", "interactive_mode": True}, None),
        ({"interactive_candidates": "inline", "interactive_mode": True}, "read with --interactive-candidates inline"),
        ({"eval_candidates": "inline", "datatype": "train", "load_from_checkpoint": True}, None),  # kept for a chat
        ({"index": "some"}, "is not read with --index: "),
    ],
)
def test_a_file_of_candidates_that_is_not_read_is_warned_of(options, unread, monkeypatch):
    warnings: list[str] = []
    monkeypatch.setattr(choice.logging, "warning", warnings.append)
    opt = Opt({"candidates": "batch", "interactive_candidates": "fixed", "eval_candidates": "inline"}, **options)
    check_sources(Opt(opt, override={"fixed_candidates_path": "replies.txt"}), in_loop=False)
    lines = [line for line in warnings if line.startswith("--fixed-candidates-path replies.txt is not read with ")]
    assert (unread is None and not lines) or (len(lines) == 1 and unread in lines[0])
