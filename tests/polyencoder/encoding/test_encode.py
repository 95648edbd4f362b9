from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer

import polyencoder.encoding.encode as encoding
import polyencoder.encoding.encoder as encoder
import polyencoder.encoding.torch_encoder as torch_encoder
from polyencoder.config import DenseConfig, TextConfig
from polyencoder.encoding.encode import encode_candidates, encode_token_ids
from polyencoder.encoding.fingerprint import compute_candidate_fingerprint
from polyencoder.ranker import Ranker
from polyencoder.text import TextEncoder
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


@pytest.fixture
def candidates(sentences) -> list[str]:
    """Texts of very different lengths, some of them twice, in no order."""
    return [sentences[5], "", "hi", *sentences, " ".join(sentences), "hi", sentences[0][:9]]


@pytest.fixture
def one_by_one(text):
    return lambda model, candidates: torch.cat(
        [model.encode_candidates(text.batch_candidates([candidate])) for candidate in candidates]
    )


@torch.no_grad()
@pytest.mark.parametrize(("batch_size", "batch_tokens"), [(256, 1 << 14), (1, 1 << 14), (3, 50), (256, 1)])
def test_in_the_order_asked_whatever_the_batches(
    monkeypatch, make_model, text, candidates, one_by_one, batch_size, batch_tokens
):
    monkeypatch.setattr(encoding, "CPU_BATCH_TOKENS", batch_tokens)
    model = make_model("poly")
    vectors = encode_candidates(model, text, candidates, batch_size=batch_size)
    torch.testing.assert_close(vectors, one_by_one(model, candidates), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@mostly_long(
    ("fields", "batch_tokens"),
    [
        *(({}, 1 << 14), ({}, 1), ({"context_vectors": "n_first"}, 50)),
        *(({"context_vectors": "turns", "turn_end": 3}, 50), ({"poly_attention": "multihead"}, 50)),
    ],
    quick=3,
)
def test_contexts_in_the_order_asked(monkeypatch, make_model, text, candidates, fields, batch_tokens):
    monkeypatch.setattr(encoding, "CPU_BATCH_TOKENS", batch_tokens)
    model = make_model("poly", **fields)
    contexts = [[candidate or "?", "hi"] for candidate in candidates]
    encoded = encode_token_ids(model, text, [text.tokenize_context(turns) for turns in contexts])
    vectors = torch.randn(9, model.dim)
    expected = torch.cat([model.score(model.encode_context(text.batch_contexts([row])), vectors) for row in contexts])
    torch.testing.assert_close(model.score(encoded, vectors), expected, rtol=1e-4, atol=1e-4)
    assert encoded.batch_size == len(contexts)


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["poly", "late"])
def test_a_short_context_may_have_the_most_turns(monkeypatch, make_model, text, sentences, architecture):
    monkeypatch.setattr(encoding, "CPU_BATCH_TOKENS", 30)  # the longest alone, and first
    end = text.separator_ids[-1]
    fields = {"context_vectors": "turns", "n_codes": 8} if architecture == "poly" else {}
    model = make_model(architecture, turn_end=end, **fields)
    contexts = [["hi", "you", "me", "no"], [" ".join(sentences[:4])], ["hello", "hi"]]
    encoded = encode_token_ids(model, text, [text.tokenize_context(turns) for turns in contexts])
    vectors = torch.randn(5, model.dim)
    expected = torch.cat([model.score(model.encode_context(text.batch_contexts([row])), vectors) for row in contexts])
    torch.testing.assert_close(model.score(encoded, vectors), expected, rtol=1e-4, atol=1e-4)
    assert encoded.mask is not None
    assert encoded.mask.sum(1).tolist() == [4, 1, 2]


def test_a_batch_of_contexts_stays_within_its_budget(monkeypatch, make_ranker, sentences):
    """`search_many`, `score` and `encode_contexts` do not pad a thousand contexts to the longest."""
    monkeypatch.setattr(encoding, "CPU_BATCH_TOKENS", 60)
    monkeypatch.setattr(encoder, "CONTEXTS", 3)
    ranker, batches = make_ranker("poly"), []
    contexts = [*sentences, " ".join(sentences)] * 2
    index = ranker.index(sentences)
    expected = [torch.as_tensor(ranker.score([context], sentences)) for context in contexts]
    ranker.model.context_tower.register_forward_pre_hook(lambda module, inputs: batches.append(inputs[0]))
    ranker.encode_contexts(contexts)
    torch.testing.assert_close(
        torch.as_tensor(ranker.score(contexts, sentences)), torch.cat(expected), rtol=1e-4, atol=1e-4
    )
    ranker.search_many(contexts, index)
    assert all(batch.ids.numel() <= 60 for batch in batches)
    assert sum(map(len, batches)) == 3 * len(contexts)


def test_pairs_of_a_few_contexts_at_a_time(monkeypatch, make_ranker, sentences):
    ranker, contexts = make_ranker("cross"), [*sentences, " ".join(sentences)]
    expected = torch.as_tensor(ranker.score(contexts, sentences))
    monkeypatch.setattr(torch_encoder, "_PAIRS", 2 * len(sentences) + 1)
    torch.testing.assert_close(torch.as_tensor(ranker.score(contexts, sentences)), expected, rtol=1e-4, atol=1e-4)


def test_a_batch_stays_within_its_budget(monkeypatch, make_model, text, candidates):
    monkeypatch.setattr(encoding, "CPU_BATCH_TOKENS", 60)
    model, batches, done = make_model("bi"), [], []
    model.candidate_tower.register_forward_pre_hook(lambda module, inputs: batches.append(inputs[0]))
    encode_candidates(model, text, candidates, batch_size=4, progress=done.append)
    assert all(len(batch) <= 4 and batch.ids.numel() <= 60 for batch in batches)
    assert done == [len(batch) for batch in batches]
    assert sum(done) == len(candidates)


def test_no_candidates(make_model, text):
    assert encode_candidates(make_model("bi"), text, []).shape == (0, 16)


def test_nothing_is_kept_for_a_gradient(make_model, text, candidates):
    assert not encode_candidates(make_model("bi"), text, candidates).requires_grad


@pytest.mark.parametrize("fields", [{}, {"share_encoders": True}])
def test_the_fingerprint_survives_the_disk(make_ranker, tmp_path, fields):
    ranker = make_ranker("poly", **fields)
    ranker.save_pretrained(tmp_path)
    again = Ranker.from_pretrained(tmp_path)
    assert compute_candidate_fingerprint(again.model, again.text) == compute_candidate_fingerprint(
        ranker.model, ranker.text
    )


def test_the_fingerprint_tells_everything_apart_that_changes_a_vector(make_model, tokenizer, text, text_config):
    def nudged():
        model = make_model("bi")
        with torch.no_grad():
            next(model.candidate_tower.parameters())[0, 0] += 1e-6
        return model

    model = make_model("bi")
    extended = Tokenizer.from_str(tokenizer.to_str())
    extended.add_tokens(["pets"])
    fingerprints = [
        compute_candidate_fingerprint(model, text),
        compute_candidate_fingerprint(nudged(), text),
        compute_candidate_fingerprint(make_model("bi", seed=1), text),
        compute_candidate_fingerprint(make_model("bi", reduction="mean"), text),
        compute_candidate_fingerprint(make_model("bi", output_scaling=0.5), text),
        compute_candidate_fingerprint(make_model("bi", prompt_tokens=(0, 2)), text),
        compute_candidate_fingerprint(make_model("bi", dense=(DenseConfig(size=8),)), text),
        compute_candidate_fingerprint(make_model("bi", dense=(DenseConfig(size=8, activation="tanh"),)), text),
        compute_candidate_fingerprint(model, TextEncoder(extended, text_config)),
        compute_candidate_fingerprint(model, TextEncoder(tokenizer, replace(text_config, label_truncate=5))),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert compute_candidate_fingerprint(make_model("bi"), text) == fingerprints[0]


def test_the_fingerprint_leaves_out_what_changes_no_candidate(make_model, text):
    """Other context weights, other codes: an index of candidates stays valid."""
    model = make_model("poly")
    before = compute_candidate_fingerprint(model, text)
    assert compute_candidate_fingerprint(make_model("poly", prompt_tokens=(2, 0)), text) == before
    with torch.no_grad():
        model.codes.codes += 1
        next(model.context_tower.parameters())[0] += 1
    assert compute_candidate_fingerprint(model, text) == before
    model.config.backbone["hidden_dropout_prob"] = 0.7
    assert compute_candidate_fingerprint(model, text) == before


CONTEXT_FIELDS = {
    "text_truncate": 99,
    "truncation_side": "right",
    "history_size": 3,
    "separator": "[CLS]",
    "context_prompt": "hi",
    "number_turns": True,
    "person_tokens": True,
    "person_tokens_after_newline": True,
}


def test_the_fingerprint_has_those_fields_of_the_text_that_change_a_candidate(make_model, text):
    others = {"label_truncate": 5, "truncation": "tokens", "surround": False, "candidate_prompt": "hi"}
    others |= {"pad_token": "[SEP]", "start_token": "[SEP]", "end_token": "[CLS]", "empty_token": "[SEP]"}
    values, model, texts = CONTEXT_FIELDS | others, make_model("bi"), ["hi", "do you have any pets ?", ""]
    fingerprint, ids = compute_candidate_fingerprint(model, text), text.tokenize_candidates(texts)
    assert values.keys() == {field.name for field in dataclasses.fields(TextConfig)} - {"candidate_rows"}
    for name, value in values.items():
        other = TextEncoder(text.tokenizer, replace(text.config, **{name: value}))
        same = compute_candidate_fingerprint(model, other) == fingerprint
        assert same == (name in CONTEXT_FIELDS), name
        assert not same or other.tokenize_candidates(texts) == ids, name


def test_a_warning_says_once_how_many_candidates_are_cut(make_ranker, caplog, tmp_path):
    ranker = make_ranker("bi")
    limit = ranker.text.config.label_truncate
    words = ["dogs"] * limit
    while len(ranker.text.tokenize([" ".join(words)])[0]) > limit - 2:
        words.pop()
    whole = " ".join(words)
    candidates = ["cat", whole, f"{whole} cat cat cat", f"{whole} and two pets", "dogs"]
    assert ranker.text.count_cut(candidates, ranker.text.tokenize_candidates(candidates)) == 2
    ranker.rank("hi", [whole, "cat"])
    assert caplog.text == ""
    ranker.index(candidates, tmp_path / "index").close()
    (warning,) = caplog.records
    assert ("2 of 5 candidates" in warning.getMessage(), "label_truncate" in warning.getMessage()) == (True, True)
    ranker.rank("hi", candidates)
    assert len(caplog.records) == 1
