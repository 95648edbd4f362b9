"""Models that ParlAI's own agents trained, under ours: the same scores by every door."""

from __future__ import annotations

import random

import pytest

from polyencoder.ranker import Ranker
from tests.agents.ranker.parlai_models.conftest import (
    DEFAULTS,
    GPT2,
    MULTIHEAD,
    OURS,
    THEIRS,
    WHOLE_DICTIONARY,
    digests,
    episode,
    scores,
)
from tests.commands import run_command
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow

KINDS = [
    ("biencoder", {}),
    ("polyencoder", MULTIHEAD | {"reduction_type": "mean", "n_segments": 0, "output_scaling": 0.06}),
    # ParlAI's own defaults, as far as they shape a model
    ("ranker", DEFAULTS),
    ("polyencoder", DEFAULTS | {"dict_tokenizer": "space", "codes_attention_type": "multihead"}),
    ("polyencoder", GPT2),
    ("crossencoder", {"reduction_type": "mean", "output_scaling": 0.06, "truncate": 12, "text_truncate": None}),
    # the others only at night
    ("biencoder", {"reduction_type": "mean", "output_scaling": 0.06, "share_word_embeddings": False}),
    ("polyencoder", {}),
    ("polyencoder", {"codes_attention_type": "multihead", "poly_attention_type": "multihead", "output_scaling": 0.06}),
    ("polyencoder", {"polyencoder_type": "n_first", "reduction_type": "mean", "n_segments": 0}),
    ("polyencoder", {"output_scaling": 0.06, "codes_attention_type": "sqrt", "poly_attention_type": "sqrt"}),
    ("polyencoder", MULTIHEAD),
    ("polyencoder", {"learn_positional_embeddings": False, "embeddings_scale": True, "dict_tokenizer": "re"}),
    ("polyencoder", {"person_tokens": True, "force_fp16_tokens": True, "delimiter": " | "}),
    ("biencoder", DEFAULTS),
    ("crossencoder", DEFAULTS | {"reduction_type": "first", "truncate": 30}),
    ("biencoder", {"variant": "prelayernorm", "share_encoders": True, "dict_tokenizer": "split"}),
    ("polyencoder", {"variant": "bart", "dict_tokenizer": "bytelevelbpe", **WHOLE_DICTIONARY}),
    ("ranker", {"variant": "aiayn", "dict_tokenizer": "slow_bytelevel_bpe", **WHOLE_DICTIONARY}),
    ("ranker", {"wrap_memory_encoder": True, "share_encoders": True, "share_word_embeddings": False}),
    ("crossencoder", {}),
]


ODD = ["", " ", "?!... ,;", "😀👩\u200d👧 ☃", "zyx qwv", "__unk__ __start__", "\x1f\u2028\xa0", "two  spaces"]
ODD += ["long " * 90]


def examples(count, labels):
    """Episodes of one to three turns with five candidates each, of the task's words and of odd texts."""
    rng = random.Random(7)
    texts = [*labels, *ODD, "where is the cat ?", "Tell ME , is the Dog with you ?", "i look for\na cow ."]
    episodes = []
    for _ in range(count):
        turns = [rng.choice(texts) for _ in range(rng.randint(0, 2))] + [
            rng.choice(["where ?", "a cat . " * 3, "hi 😀"])
        ]
        episodes.append(episode(*turns, candidates=rng.sample(texts, 5)))
    return episodes


@mostly_long(("model", "options"), KINDS, quick=6)
def test_the_same_scores_and_metrics(model, options, theirs, both, respond, evaluate, labels):
    path = theirs(model, **options)
    before = digests(path)
    candidates = [*labels, "hen , hen ? hen ! hen ; hen & pig", "Ωμέγα ΟΔΟΣ", "unseen words 😀"]
    episodes = [
        episode("where is the cat ?", candidates=candidates),
        episode("Hello THERE\nmy friend", "where\n\nis the dog ?", "tell me", "and __newln__ ?", candidates=candidates),
        episode("word " * 20 + "where is the unknowable animal, cat?", candidates=candidates),
    ]
    batches = [episodes, examples(60, labels)]  # ParlAI wants equally many candidates in each example of a batch
    agents = both(model, options)
    expected, actual = ([reply for batch in batches for reply in scores(respond(agent, *batch))] for agent in agents)
    size = max(abs(score) for reply in expected for score in reply.values())
    for theirs_of_one, ours_of_one in zip(expected, actual, strict=True):
        assert ours_of_one == pytest.approx(theirs_of_one, abs=1e-4 * size)
        assert len(set(theirs_of_one.values())) > 1
    reports = [evaluate(path, model=name) for name in (THEIRS[model], OURS.get(model, model))]
    for metric in ("hits@1", "hits@5", "mrr", "loss"):
        assert reports[1][metric] == pytest.approx(reports[0][metric], abs=1e-4)
    assert digests(path) == before


@pytest.mark.parametrize(("model", "options"), [("biencoder", DEFAULTS), ("polyencoder", {})])
def test_padding_tokens_in_texts(model, options, both, respond):
    """ParlAI does not see them, wherever they stand."""
    texts = ["a cat", "a __null__ cat", "__null__", "__null__ a __null__ dog"]
    expected, actual = (
        scores(respond(agent, episode("__null__ where is __null__ it ?", candidates=texts)))[0]
        for agent in both(model, options | {"dict_tokenizer": "re"})
    )
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert actual["a cat"] == pytest.approx(actual["a __null__ cat"])


@pytest.mark.parametrize(("model", "options"), [("biencoder", DEFAULTS), ("ranker", DEFAULTS), ("polyencoder", GPT2)])
def test_every_door(model, options, theirs, both, respond, labels, tmp_path):
    """The library, an imported folder, and training that starts from it: the same scores, but for what is trained."""
    path = theirs(model, **options)
    candidates = [*labels, *(text for text in ODD if text.strip())]  # the library refuses empty ones
    expected = scores(respond(both(model, options)[0], episode("is it\nthe owl ?", candidates=candidates)))[0]
    run_command("import", path, tmp_path / "folder")
    for where in (path, tmp_path / "folder"):
        ranker = Ranker.from_pretrained(where, device="cpu")
        actual = {match.text: match.score for match in ranker.rank(["is it\nthe owl ?"], candidates)}
        assert actual == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("model", "options"), [("biencoder", DEFAULTS), ("ranker", DEFAULTS), ("polyencoder", GPT2)])
def test_training_starts_from_what_it_is(model, options, theirs, make_agent, respond, tmp_path, task, labels):
    """With flags that say the same, the first scores are the scores of the model, perceptron and all."""
    path = theirs(model, **options)
    same = {"reduction_type": options.get("reduction_type", "first"), "share_encoders": options["share_encoders"]}
    same |= {"poly_n_codes": 5} if model == "polyencoder" else {}
    sizes = {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "n_positions": 64, "history_size": -1}
    lengths = {"text_truncate": 14, "label_truncate": 8}
    new = make_agent(OURS.get(model, model), init_model=str(path), dict_file=None, **same, **sizes, **lengths)
    old = make_agent(OURS.get(model, model), model_file=path, datatype="valid", return_cand_scores=True)
    new.opt["return_cand_scores"] = True
    question = {**episode("where is it ?", candidates=labels)[0]}
    actual, expected = (scores(respond(agent, question))[0] for agent in (new, old))
    assert actual == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_normalized_vectors_of_fixed_candidates(both, respond, labels, tmp_path):
    """ParlAI's vectors have length 1: with inline candidates it divides by another length (see the weights)."""
    options = {**DEFAULTS, "normalize_sent_emb": True, "candidates": "batch"}
    candidates = [*labels, *(text for text in ODD if text.strip())]
    (tmp_path / "candidates.txt").write_text("\n".join(candidates) + "\n", encoding="utf-8")
    fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(tmp_path / "candidates.txt")}
    with pytest.warns(UserWarning, match="normalize_sent_emb divides inline candidates"):
        agents = both("biencoder", options, **fixed, encode_candidate_vecs=False)
    expected, actual = (scores(respond(agent, {"text": "where is the cat ?"}))[0] for agent in agents)
    assert actual == pytest.approx(expected, abs=1e-5)
    assert -1.0001 <= min(expected.values()) < max(expected.values()) <= 1.0001
