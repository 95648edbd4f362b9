"""A model's fingerprint: another one for whatever changes its scores."""

from __future__ import annotations

from polyencoder.encoding.fingerprint import compute_model_fingerprint


def test_it_is_that_of_weights_settings_and_tokenizer(make_ranker):
    def compute(**fields) -> str:
        ranker = make_ranker("bi", **fields)
        return compute_model_fingerprint(ranker.model, ranker.text)

    assert compute() == compute()
    assert len({compute(), compute(seed=5), compute(reduction="mean"), compute(output_scaling=2.0)}) == 4
    ranker = make_ranker("bi")
    assert compute_model_fingerprint(ranker.model, ranker.text, dtype="bfloat16") != compute()
    ranker.text.tokenizer.add_tokens(["never seen"])
    assert compute_model_fingerprint(ranker.model, ranker.text) != compute()
