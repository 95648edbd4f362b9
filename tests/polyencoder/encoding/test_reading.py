"""What goes through a late encoder's backbones: contexts once for both terms, candidates once while they are kept."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from polyencoder.encoding.reading import CandidateReader
from polyencoder.index.searcher import Searcher
from polyencoder.search.contexts import Contexts
from polyencoder.serving.forward import PAIR, Forward

pytestmark = pytest.mark.slow

CONTEXTS = [["hello , how are you today ?", "do you have any pets ?"], ["i like to ski ."], ["hello"]]


@pytest.fixture
def ranker(make_ranker, text):
    ranker = make_ranker("late", turn_end=text.separator_ids[-1], reduction="mean")
    with torch.no_grad():
        ranker.model.term_weights.copy_(torch.tensor([0.9, 0.5, 0.3, 0.4, 0.2]))
    return ranker


@pytest.fixture
def read(ranker):
    """() -> the number of texts that the encoder has read since the last call."""
    counted = []
    for tower in ranker.model.backbones:
        tower.register_forward_pre_hook(lambda _, inputs: counted.append(len(inputs[0])))

    def count() -> int:
        n = sum(counted)
        counted.clear()
        return n

    return count


def test_candidates_are_read_once_until_the_weights_change(ranker, read, sentences):
    first = ranker.rank(CONTEXTS[0], sentences)
    assert read() == 1 + len(sentences)
    assert ranker.rank(CONTEXTS[0], sentences[::-1])[0] == first[0]._replace(index=len(sentences) - 1 - first[0].index)
    assert read() == 1
    ranker.score(CONTEXTS, [*sentences, "a new one", "a new one"])
    assert read() == len(CONTEXTS) + 1
    with torch.no_grad():
        ranker.model.token_weight.add_(1)
    scores = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    assert read() == len(CONTEXTS) + len(sentences)
    with torch.no_grad():
        expected = ranker.model(ranker.text.batch_contexts(CONTEXTS), ranker.text.batch_candidates(sentences))
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "poly", "late"])
def test_weights_that_are_overwritten_through_data_are_other_weights(make_ranker, sentences, architecture):
    """Averages of weights replace the trained ones so."""
    ranker, other = make_ranker(architecture), make_ranker(architecture, seed=1)
    ranker.score(CONTEXTS, sentences)
    for ours, theirs in zip(ranker.model.parameters(), other.model.parameters(), strict=True):
        ours.data.copy_(theirs.data)
    assert torch.equal(
        torch.as_tensor(ranker.score(CONTEXTS, sentences)), torch.as_tensor(other.score(CONTEXTS, sentences))
    )


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_a_step_of_an_optimizer_changes_the_weights(ranker, read, sentences, optimizer):
    ranker.score(["hello"], sentences)
    scores = ranker.model(ranker.text.batch_contexts(CONTEXTS), ranker.text.batch_candidates(sentences))
    scores[:, 0].sum().backward()
    for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        read()
        optimizer(ranker.model.parameters(), lr=0.01, **how).step()
        ranker.score(["hello"], sentences)
        assert read() == 1 + len(sentences)


def test_token_vectors_of_many_contexts_are_not_in_memory_at_once(ranker, sentences, monkeypatch):
    sizes, rescore = [], ranker.encoder.rescore
    monkeypatch.setattr(
        ranker.encoder, "rescore", lambda contexts, read: sizes.append(contexts.batch_size) or rescore(contexts, read)
    )
    contexts = [*CONTEXTS, *[["hello"]] * 127]
    scores = torch.as_tensor(ranker.score(contexts, sentences))
    assert sizes == [128, 2]
    torch.testing.assert_close(scores[[0, -1]], torch.as_tensor(ranker.score([contexts[0], contexts[-1]], sentences)))


def test_a_ranker_can_be_copied_and_pickled(ranker, sentences):
    expected = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    for other in (copy.deepcopy(ranker), pickle.loads(pickle.dumps(ranker))):  # noqa: S301 - its own
        assert other.encoder.reader is not ranker.encoder.reader
        assert torch.equal(torch.as_tensor(other.score(CONTEXTS, sentences)), expected)


def test_what_is_kept_stays_within_its_bytes(ranker, read, sentences):
    expected = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    reader = CandidateReader()
    ids = ranker.text.tokenize_candidates(sentences)
    sizes = [1024 + 4 * (ranker.model.dim + len(row) * ranker.model.token_dim) for row in ids]
    ranker.encoder.reader = reader = CandidateReader(max_bytes=sum(sizes[:5]))
    for texts in (sentences[:5], sentences[2:5]):
        torch.testing.assert_close(
            torch.as_tensor(ranker.score(CONTEXTS, texts)), expected[:, [sentences.index(text) for text in texts]]
        )
    assert read() == len(CONTEXTS) * 3 + len(sentences) + 5
    ranker.score(["hello"], sentences[5:6])  # in place of the first ones, which were not used lately
    read()
    ranker.score(["hello"], sentences[2:5])
    assert read() == 1
    torch.testing.assert_close(torch.as_tensor(ranker.score(CONTEXTS, sentences)), expected)  # more than fit
    assert reader._bytes <= sum(sizes[:5])


def test_a_search_reads_its_context_once(ranker, read, sentences, tmp_path):
    index = ranker.index(sentences, tmp_path / "index")
    expected = [[(hit.text, hit.score) for hit in ranker.rank(context, sentences)] for context in CONTEXTS]
    ranker.encoder.reader = CandidateReader()
    read()
    searcher = Searcher(ranker, index, keep_turns=True)
    hits = searcher(CONTEXTS)
    assert read() == len(CONTEXTS) + len(sentences)
    assert [[hit.text for hit in row] for row in hits] == [[text for text, _ in row] for row in expected]
    for context_hits, pairs in zip(hits, expected, strict=True):
        assert [hit.rerank_score for hit in context_hits] == pytest.approx([score for _, score in pairs], abs=1e-4)
    encoded = ranker.encode_contexts(CONTEXTS)
    assert read() == len(CONTEXTS)
    assert searcher.find(encoded, CONTEXTS) == hits
    assert read() == 0
    bare = Contexts(encoded.vectors)  # as of an encoder elsewhere: read here, by its own tokens
    assert [[hit.id for hit in row] for row in searcher.find(bare, CONTEXTS)] == [
        [hit.id for hit in row] for row in hits
    ]
    assert read() == len(CONTEXTS)


def test_another_late_encoder_reads_contexts_for_itself(ranker, make_ranker, read, sentences, tmp_path):
    other = make_ranker("bi", seed=1)
    index = other.index(sentences, tmp_path / "index")
    hits = other.search(CONTEXTS[0], index, rerank=ranker, keep_turns=True)
    assert [hit.text for hit in hits] == [hit.text for hit in ranker.rank(CONTEXTS[0], sentences)]
    assert read() == 1 + len(sentences) + 1


def test_requests_to_rerank_read_candidates_once(ranker, read, sentences):
    expected = torch.as_tensor(ranker.score(CONTEXTS, sentences))
    forward = Forward(ranker, max_tokens=4096)
    contexts = [ranker.text.tokenize_context(context) for context in CONTEXTS]
    pairs = [(ids, candidate) for ids in contexts for candidate in ranker.text.tokenize_candidates(sentences)]
    ranker.encoder.reader = CandidateReader()
    read()
    for texts in (len(sentences), 0):
        assert forward(PAIR, pairs) == pytest.approx(expected.flatten().tolist(), abs=1e-4)
        assert read() == len(CONTEXTS) + texts
