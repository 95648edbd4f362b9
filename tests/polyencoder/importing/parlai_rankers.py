"""ParlAI's own rankers with random weights, built and run by ParlAI's agents, and ours with the same weights."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from parlai.agents.transformer.biencoder import BiencoderAgent
from parlai.agents.transformer.crossencoder import CrossencoderAgent
from parlai.agents.transformer.polyencoder import PolyencoderAgent

from polyencoder.checkpoint import load_weights
from polyencoder.config import TextConfig
from polyencoder.importing.parlai_weights import convert_parlai
from polyencoder.modeling.build import build_model
from polyencoder.text.tokens import pad

AGENTS = {"bi": BiencoderAgent, "poly": PolyencoderAgent, "cross": CrossencoderAgent}
NULL = 0
VOCABULARY = 60
TEXT = TextConfig(text_truncate=24, label_truncate=8)
OPT = {
    "embedding_size": 32,
    "ffn_size": 48,
    "n_layers": 2,
    "n_heads": 4,
    "n_positions": 32,
    "n_segments": 2,
    "variant": "xlm",
    "activation": "gelu",
    "learn_positional_embeddings": True,
    "embeddings_scale": False,
    "embedding_type": "random",
    "learn_embeddings": True,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "relu_dropout": 0.0,
    "output_scaling": 0.06,
    "reduction_type": "first",
    "share_encoders": False,
    "share_word_embeddings": False,
    "use_memories": False,
    "memory_attention": "sqrt",
    "normalize_sent_emb": False,
    "polyencoder_type": "codes",
    "poly_n_codes": 5,
    "poly_attention_type": "basic",
    "poly_attention_num_heads": 4,
    "codes_attention_type": "basic",
    "codes_attention_num_heads": 4,
}

# Contexts of one token, shorter than 5 codes, and longer; candidates of one token and more
CONTEXT_LENGTHS = (1, 3, 12, 7)
CANDIDATE_LENGTHS = (1, 6, 2, 4, 3)


class Dictionary:
    """What ParlAI's models ask of a dictionary: its size, and the index of its padding token."""

    null_token = "__null__"

    def __len__(self):
        return VOCABULARY

    def __getitem__(self, token):
        assert token == self.null_token
        return NULL


def theirs(architecture, **options):
    """ParlAI's agent around its model, each of whose weights was changed at random."""
    torch.manual_seed(7)
    agent = AGENTS[architecture].__new__(AGENTS[architecture])
    agent.opt, agent.dict, agent.NULL_IDX, agent.use_cuda = OPT | options, Dictionary(), NULL, False
    agent.history_reversed = False
    agent.model = agent.build_model().eval()
    with torch.no_grad():
        for weight in agent.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return agent


def convert(agent, architecture, *, state=None, opt=None):
    state = agent.model.state_dict() if state is None else state
    return convert_parlai(state, opt or agent.opt, architecture=architecture, text=TEXT, origin="model")


def ours(agent, architecture):
    """Our model with the agent's weights."""
    config, weights = convert(agent, architecture)
    model = build_model(config).eval()
    load_weights(model, weights, origin="model")
    return model


def sequences(lengths, *, seed):
    """A batch of sequences of these lengths, of random tokens, none of them padding."""
    generator = torch.Generator().manual_seed(seed)
    return pad([torch.randint(1, VOCABULARY, (n,), generator=generator).tolist() for n in lengths], pad_id=NULL)


def inline(batch, lengths, *, seed=2):
    """Candidates of their own for each context, as one batch of sequences, and the index [batch, n] of their rows."""
    candidates = sequences(lengths * batch, seed=seed)
    return candidates, torch.arange(batch * len(lengths)).view(batch, -1)


@torch.no_grad()
def scores_of_both(architecture, contexts, candidates, index=None, **options):
    """Scores [batch, n] by ParlAI and by us. Without an index all contexts share the candidates."""
    agent = theirs(architecture, **options)
    model = ours(agent, architecture)
    candidate_vecs = candidates.ids if index is None else candidates.ids[index]
    expected = agent.score_candidates(SimpleNamespace(text_vec=contexts.ids, memory_vecs=None), candidate_vecs)
    return expected, model(contexts, candidates, index)


def assert_same_scores(expected, actual):
    """Equal to 1e-5 of the largest score, and scores worth the name: between candidates they differ by far more.

    Both sides compute in float32, in another order: they were seen to differ by at most 1e-6 of the largest score.
    """
    assert actual.shape == expected.shape
    size = expected.abs().max().item()
    assert expected.std(dim=1).min() > 0.01 * size
    assert len(expected) == 1 or expected.std(dim=0).min() > 0.01 * size
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * size)
