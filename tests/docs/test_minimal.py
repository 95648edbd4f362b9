"""docs/minimal.py computes the library's scores, learns, and finds the best response."""

from __future__ import annotations

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig

from docs import minimal
from polyencoder import Ranker

CONTEXTS = [["hello", "hi , how are you ?", "fine . do you ski ?"], ["what do you do in winter ?"], ["hello " * 300]]
RESPONSES = ["i ski every winter .", "i teach .", "my dog is old .", "hello " * 100]


def test_scores_are_the_librarys(minilm_folder):
    torch.manual_seed(0)
    parts = [auto.from_pretrained(minilm_folder) for auto in (AutoModel, AutoTokenizer)]
    model = minimal.PolyEncoder(*parts, n_codes=8)
    config = {"n_codes": 8, "reduction": "first", "normalize": False, "output_scaling": 1.0}
    ranker = Ranker.from_backbone(minilm_folder, "poly", **config)
    with torch.no_grad():
        ranker.model.codes.codes.copy_(model.codes)
    model.eval()
    with torch.inference_mode():
        scores = minimal.score(model.encode_contexts(CONTEXTS), model.encode_candidates(RESPONSES))
    for context, row in zip(CONTEXTS, scores, strict=True):
        ranked = ranker.rank(context, RESPONSES)
        expected = torch.tensor([hit.score for hit in sorted(ranked, key=lambda hit: hit.index)])
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)
    index = minimal.Index(model, RESPONSES)
    for context in CONTEXTS:
        texts = [hit.text for hit in ranker.rank(context, RESPONSES)]
        assert [text for _, text in index.search(context)] == texts


def test_it_learns(minilm_folder):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder = AutoModel.from_config(BertConfig(vocab_size=len(tokenizer), **sizes, **dropout))
    model = minimal.PolyEncoder(encoder, tokenizer, n_codes=4)
    words = tokenizer.convert_ids_to_tokens(range(5000, 5064))
    pairs = [(["hello", f"say {word}"], f"{word} , you mean ?") for word in words]
    before = minimal.evaluate(model, pairs, n=8)
    minimal.train(model, pairs, epochs=20, learning_rate=3e-3)
    assert minimal.evaluate(model, pairs, n=8) > before + 0.4
