"""The heads and losses: against a plain reference, of a uniform model, packed, in halves, and what is trained."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig, BertForMaskedLM

from polyencoder.data.epochs import Reader
from polyencoder.errors import ConfigError, InputError
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.modeling.loading import build_backbone
from polyencoder.pretraining.batches import PairBatches, PairInputs, _cut_evenly
from polyencoder.pretraining.corpus import Corpus, PairExample
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.inputs import build_pair_batch, build_pair_input
from polyencoder.pretraining.masking import IGNORED
from polyencoder.pretraining.objective import Chance, PretrainingObjective
from polyencoder.text.batches import cut_into_batches
from tests.polyencoder.pretraining.conftest import LONGEST, TALKS

EXAMPLES = [
    PairExample(talk[:turn], talk[turn], other=TALKS[number - 1][1], key=100 * number + turn)
    for number, talk in enumerate(TALKS)
    for turn in range(1, len(talk))
]


@pytest.fixture
def inputs(piece_text, masking):
    return PairInputs(piece_text, longest=LONGEST, masking=masking)


@pytest.fixture
def batches(inputs):
    """A batch of masked words, and one of next utterances."""
    kinds = (inputs.mask, inputs.draw_next)
    drawn = ([draw(pair, np.random.default_rng(pair.key)) for pair in EXAMPLES] for draw in kinds)
    return [build_pair_batch(pairs, pad_id=inputs.text.pad_id) for pairs in drawn]


@pytest.fixture
def apart(piece_text, masking):
    """A batch of contexts and their responses; two contexts share a response."""
    inputs = PairInputs(piece_text, longest=LONGEST, masking=masking, next="contrastive")
    examples = [*EXAMPLES, replace(EXAMPLES[-1], turns=["how many teach math ?"])]
    drawn = [inputs.draw_next(example, np.random.default_rng(example.key)) for example in examples]
    return build_pair_batch(drawn, pad_id=piece_text.pad_id)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_masked_words_are_those_of_transformers(make_pretraining, batches):
    """transformers has a model with these weights; its loss is the mean over the chosen words."""
    model, batch = make_pretraining(), batches[0]
    reference = BertForMaskedLM(BertConfig(**model.encoder.model.config.to_dict())).eval()
    reference.bert.load_state_dict(model.encoder.model.state_dict())
    head, ours = reference.cls.predictions, model.masked_words
    head.transform.load_state_dict(ours.transform.state_dict())
    head.transform.LayerNorm.eps = ours.transform.LayerNorm.eps
    with torch.no_grad():
        ours.bias.normal_()
        head.decoder.bias.copy_(ours.bias)
    tokens = batch.contexts
    expected = reference(
        input_ids=tokens.ids,
        attention_mask=tokens.mask.long(),
        token_type_ids=tokens.segments,
        labels=batch.targets,
    )
    outcome = PretrainingObjective(model)(batch)
    torch.testing.assert_close(outcome.loss, expected.loss)
    chosen = batch.targets != IGNORED
    right = (expected.logits[chosen].argmax(1) == batch.targets[chosen]).sum()
    assert outcome.sums["masked_accuracy"] == (float(right), int(chosen.sum()))
    outcome.loss.backward()
    expected.loss.backward()
    torch.testing.assert_close(
        model.encoder.model.embeddings.word_embeddings.weight.grad,
        reference.bert.embeddings.word_embeddings.weight.grad,
    )


def test_next_utterances_are_a_linear_layer_on_the_first_output(make_pretraining, batches):
    model, batch = make_pretraining(), batches[1]
    outputs = [model.encoder(batch.contexts.select(torch.tensor([row])))[0, 0] for row in range(len(batch))]
    scores = torch.stack(outputs) @ model.next_utterance.weight[0] + model.next_utterance.bias
    two = torch.stack([torch.zeros_like(scores), scores], 1)  # the same as a choice of two classes
    expected = F.cross_entropy(two, batch.follows.long())
    outcome = PretrainingObjective(model)(batch)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-5, atol=1e-6)
    assert outcome.sums["next_accuracy"][0] == (two.argmax(1) == batch.follows).sum()
    assert set(batch.follows.tolist()) == {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(("reduction", "normalize"), [("first", False), ("mean", False), ("mean", True)])
def test_contrastive_is_a_choice_among_the_different_responses_of_a_batch(
    make_pretraining, apart, reduction, normalize
):
    """Each sequence is encoded alone."""
    model = PretrainingModel(
        make_pretraining().encoder, next="contrastive", reduction=reduction, normalize=normalize
    ).eval()
    outputs = [model.encoder(apart.contexts.select(torch.tensor([row])))[0] for row in range(len(apart.contexts))]
    vectors = [output[0] if reduction == "first" else output.mean(0) for output in outputs]
    if normalize:
        vectors = [vector / vector.norm() * math.sqrt(len(vector)) for vector in vectors]
    contexts, responses = vectors[: len(EXAMPLES) + 1], vectors[len(EXAMPLES) + 1 :]
    assert len(responses) == len(EXAMPLES)
    losses, right = [], 0
    for context, column in zip(contexts, [*range(len(EXAMPLES)), len(EXAMPLES) - 1], strict=True):
        scores = [(context @ response).item() / math.sqrt(model.encoder.dim) for response in responses]
        losses.append(math.log(sum(map(math.exp, scores))) - scores[column])
        right += scores[column] == max(scores)
    outcome = PretrainingObjective(model)(apart)
    assert outcome.losses.tolist() == pytest.approx(losses, rel=1e-4, abs=1e-5)
    assert outcome.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4, abs=1e-5)
    assert outcome.sums["next_accuracy"] == (right, len(losses))


@pytest.mark.parametrize("normalize", [False, True])
def test_contrastive_scores_are_not_rounded_to_16_bits(make_pretraining, apart, normalize):
    """The encoder may compute in bfloat16; scores are products of its outputs in float32."""
    model = PretrainingModel(make_pretraining().encoder, next="contrastive", normalize=normalize).eval()
    contexts = len(EXAMPLES) + 1
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        scores = model.score_responses(apart.contexts, contexts=contexts)
        vectors = model.encoder(apart.contexts)[:, 0].double()
    if normalize:
        vectors = vectors / vectors.norm(dim=1, keepdim=True) * math.sqrt(model.encoder.dim)
    expected = vectors[:contexts] @ vectors[contexts:].T / math.sqrt(model.encoder.dim)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_packed_is_padded(make_pretraining, batches, apart):
    """On a CPU learning packs; an encoder that was asked for `eager` runs padded."""
    packed, padded = make_pretraining(), make_pretraining()
    padded.encoder.model.set_attn_implementation("eager")
    assert packed.encoder.packs
    assert not padded.encoder.packs
    for batch in (*batches, apart):
        losses = [PretrainingObjective(model.train())(batch) for model in (packed, padded)]
        torch.testing.assert_close(losses[0].losses, losses[1].losses, rtol=1e-4, atol=1e-5)
        for outcome in losses:
            outcome.loss.backward()
    expected = gradients(padded)
    for name, gradient in gradients(packed).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5)


def test_nothing_masked_leaks(make_pretraining, inputs, masking):
    """All that is computed of two sequences is the same if they differ in masked words alone."""
    model, example = make_pretraining(), EXAMPLES[2]
    masked = inputs.mask(example, np.random.default_rng(5))
    positions = [i for i, token_id in enumerate(masked.ids) if token_id == masking.mask_id]
    assert positions
    original = build_pair_input(inputs.text, example.turns, example.label, longest=LONGEST)
    ids = [99 if i in positions else token_id for i, token_id in enumerate(original.ids)]
    twins = [masking(token_ids, rng) for token_ids in (original.ids, ids) for rng in [np.random.default_rng(5)]]
    batches = [
        build_pair_batch([type(masked)(seen.tolist(), masked.context, targets.tolist())], pad_id=inputs.text.pad_id)
        for seen, targets in twins
    ]
    chosen = [batch.targets != IGNORED for batch in batches]
    assert not batches[0].targets.equal(batches[1].targets)
    logits = [model.compute_masked_logits(batch.contexts, mask) for batch, mask in zip(batches, chosen, strict=True)]
    assert logits[0].equal(logits[1])


def test_a_backbone_whose_words_are_of_another_size_is_an_error(piece_text):
    config = build_scratch_config(
        vocabulary_size=len(piece_text), dim=16, n_layers=1, n_heads=2, ffn_dim=16, n_positions=LONGEST
    )
    with pytest.raises(ConfigError, match="word embeddings of 8 numbers"):
        PretrainingModel(build_backbone(config | {"model_type": "electra", "embedding_size": 8}))


class TestBatches:
    def make(self, inputs, talks, **options):
        return PairBatches(Corpus([talks]), inputs, tokens=4 * LONGEST, **options)

    def take(self, batches, count):
        return [batch for batch, _ in zip(batches(), range(count), strict=False)]

    def test_objectives_alternate_within_the_budget(self, inputs, talks):
        for number, batch in enumerate(self.take(self.make(inputs, talks), 40)):
            assert (batch.targets is None) == bool(number % 2)
            assert batch.contexts.ids.numel() <= 4 * LONGEST
            assert 0 < len(batch) <= 4 * LONGEST

    def test_each_example_once_an_epoch(self, inputs, talks):
        """A pool of 64 is six epochs and four examples more of the ten."""
        batches = self.take(self.make(inputs, talks, pool=60), 200)
        first = [batch for batch in batches if batch.position[0] == 0]
        assert sum(map(len, first)) == 60
        assert sum(len(batch) for batch in batches if batch.position[0] == 1) == 60
        assert {batch.targets is None for batch in first} == {True, False}

    @given(lengths=st.lists(st.integers(5, 60), min_size=1, max_size=80), tokens=st.integers(60, 400))
    def test_none_has_what_is_left_over(self, lengths, tokens):
        greedy, even = (cut(lengths, max_tokens=tokens) for cut in (cut_into_batches, _cut_evenly))
        assert len(even) == len(greedy)
        assert sorted(row for batch in even for row in batch) == list(range(len(lengths)))
        padded = [len(batch) * max(lengths[row] for row in batch) for batch in even]
        assert max(padded) <= max(len(batch) * max(lengths[row] for row in batch) for batch in greedy)
        if len(lengths) > 10 * len(even):  # many in each: they are nearly equal
            assert min(padded) > max(padded) / 2

    @pytest.mark.parametrize("done", [1, 7, 30])
    def test_they_go_on_where_they_were(self, inputs, talks, done):
        expected = self.take(self.make(inputs, talks), done + 20)
        stopped, again = self.make(inputs, talks), self.make(inputs, talks)
        for batch in self.take(stopped, done):
            stopped.before_step(None, batch)
        again.load_state_dict(stopped.state_dict())
        for actual, expected_batch in zip(self.take(again, 20), expected[done:], strict=True):
            assert actual.contexts.ids.equal(expected_batch.contexts.ids)
            assert actual.position == expected_batch.position

    def test_two_readers_have_the_examples_of_one(self, inputs, talks):
        """With the same words masked, and the same others in the place of what follows."""
        alone = self.take(self.make(inputs, talks, pool=40), 60)
        shared = [self.take(self.make(inputs, talks, pool=20, reader=Reader(number, 2)), 60) for number in range(2)]

        def rows(batches):
            first = [batch for batch in batches if batch.position[0] == 0]
            return sorted(tuple(ids) for batch in first for ids in batch.contexts.list_sequences())

        assert rows(alone) == sorted(rows(shared[0]) + rows(shared[1]))

    def test_too_small_a_budget_and_an_empty_corpus_are_errors(self, inputs, talks, tmp_path):
        with pytest.raises(ConfigError, match="tokens_per_batch is 20"):
            PairBatches(Corpus([talks]), inputs, tokens=20)
        (tmp_path / "empty.jsonl").write_text('{"turns": ["alone"]}\n')
        with pytest.raises(InputError, match="no example"):
            next(self.make(inputs, str(tmp_path / "empty.jsonl"))())


def report(perplexity: float, accuracy: float) -> dict[str, float]:
    return {"perplexity": perplexity, "next_accuracy": accuracy}


def test_both_are_beaten_or_named():
    chance = Chance(perplexity=100.0, next_accuracy=0.5, examples=100)  # two deviations are a tenth
    assert chance.describe_not_beaten(report(99.0, 0.61)) == []
    (words,) = chance.describe_not_beaten(report(100.0, 0.61))
    assert words == "masked words have a perplexity of 100, and 100 by the frequencies of words alone"
    (following,) = chance.describe_not_beaten(report(99.0, 0.59))
    assert following == "next utterances are right in 0.590 of the cases, and in 0.500 by chance"


@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_without_next_utterances_words_alone_count(accuracy):
    assert Chance(perplexity=100.0, next_accuracy=0.0, examples=0).describe_not_beaten(report(50.0, accuracy)) == []
