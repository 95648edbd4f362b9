from __future__ import annotations

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch

from polyencoder import CheckpointError, ConfigError, InputError, Ranked, Ranker
from polyencoder.ranker import DEFAULT_ENCODER
from tests.parameters import mostly_long

ARCHITECTURES = [("bi", {"share_encoders": True}), ("poly", {"context_vectors": "n_last"}), ("cross", {})]


@pytest.fixture(params=ARCHITECTURES, ids=lambda p: "-".join([p[0], *p[1]]))
def ranker(request, make_ranker) -> Ranker:
    architecture, fields = request.param
    return make_ranker(architecture, **fields)


@pytest.fixture
def separable(make_ranker) -> Ranker:
    return make_ranker("poly")


def test_the_order_is_the_scores(ranker, sentences):
    context, candidates = sentences[:2], sentences[2:]
    scores = torch.as_tensor(ranker.score([context], candidates))[0]
    ranking = ranker.rank(context, candidates)
    assert [hit.score for hit in ranking] == sorted(scores.tolist(), reverse=True)
    assert sorted(hit.index for hit in ranking) == list(range(len(candidates)))
    assert len({hit.score for hit in ranking}) == len(candidates)
    for hit in ranking:
        assert hit == Ranked(hit.index, candidates[hit.index], scores[hit.index].item())
        assert [type(value) for value in hit[:3]] == [int, str, float]
        assert (hit.probability, hit.considered) == (None, None)  # neither calibrated nor diverse


@pytest.mark.parametrize("top_k", [1, 2, 6, 7, 1000])
def test_top_k_is_the_beginning_of_the_whole(separable, sentences, top_k):
    candidates = sentences[2:]
    assert separable.rank("hi", candidates, top_k=top_k) == separable.rank("hi", candidates)[:top_k]


def test_a_top_k_below_one(separable):
    with pytest.raises(InputError, match=r"top_k is 0 \(int\); it must"):
        separable.rank("hi", ["hello"], top_k=0)


def test_equal_candidates_are_each_ranked(ranker, sentences):
    candidates = [sentences[2], sentences[3], sentences[2], sentences[2]]
    ranking = ranker.rank(sentences[:1], candidates)
    assert sorted(hit.index for hit in ranking) == [0, 1, 2, 3]
    equal = [hit.score for hit in ranking if hit.index != 1]
    assert equal == pytest.approx([equal[0]] * 3, abs=1e-4)


def test_permuting_the_candidates_permutes_the_ranking(ranker, sentences):
    candidates = sentences[2:]
    forwards = ranker.rank("hi", candidates)
    backwards = ranker.rank("hi", candidates[::-1])
    assert [hit.text for hit in forwards] == [hit.text for hit in backwards]
    assert [hit.index for hit in forwards] == [len(candidates) - 1 - hit.index for hit in backwards]
    assert [hit.score for hit in forwards] == pytest.approx([hit.score for hit in backwards], abs=1e-4)


def test_many_contexts_are_scored_as_one_by_one(ranker, sentences):
    contexts, candidates = [sentences[:3], sentences[0], sentences[3:4]], sentences[4:]
    together = torch.as_tensor(ranker.score(contexts, candidates))
    assert together.shape == (3, 4)
    assert (together.dtype, together.device.type) == (torch.float32, "cpu")
    alone = torch.cat([torch.as_tensor(ranker.score([context], candidates)) for context in contexts])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_one_candidate(ranker):
    (only,) = ranker.rank("hi", ["hello"])
    assert (only.index, only.text) == (0, "hello")


def test_an_empty_candidate_is_an_error(ranker):
    for ask in (ranker.rank, lambda context, texts: ranker.score([context], texts)):
        with pytest.raises(InputError, match="^candidate 1 is empty"):
            ask("hi", ["hello", " \n"])


def test_scores_that_are_no_numbers_are_an_error(ranker):
    with torch.no_grad():
        for weights in ranker.model.parameters():
            weights.fill_(torch.nan)
    with pytest.raises(InputError, match="the model.s scores are nan"):
        ranker.rank("hi", ["hello", "you"])


def test_a_text_is_a_context_of_one_turn(ranker, sentences):
    assert ranker.rank("hi !", sentences) == ranker.rank(["hi !"], sentences)


def test_a_rankers_model_does_not_drop_out(make_model, text, make_backbone_config, sentences):
    model = make_model("bi", backbone=make_backbone_config(dropout=0.5)).train()
    ranker = Ranker(model, text, device="cpu")
    assert np.array_equal(ranker.score(["hi"], sentences), ranker.score(["hi"], sentences))


def test_encodings_make_the_scores(separable, sentences):
    context = separable.encode_contexts([sentences[:2], "hi"])
    candidates = separable.encode_candidates(sentences, batch_size=3)
    assert context.vectors.shape == (2, 4, 16)
    assert candidates.shape == (len(sentences), 16)
    scores = separable.encoder.score(context, candidates)
    np.testing.assert_allclose(scores, separable.score([sentences[:2], "hi"], sentences), rtol=1e-4, atol=1e-4)


def test_a_cross_encoder_has_no_encodings(make_ranker):
    cross = make_ranker("cross")
    for encode in (cross.encode_contexts, cross.encode_candidates):
        with pytest.raises(InputError, match="cross-encoder has no vectors"):
            encode(["hi"])


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ([], "the list of contexts is empty"),
        ([[]], "context 0 is empty: it has no"),
        (["hi", ""], "context 1 is empty"),
        (["hi", "ho", [" ", "\n"]], "context 2 is empty"),
    ],
)
def test_contexts_that_cannot_be_ranked_for(separable, contexts, message):
    with pytest.raises(InputError, match=message) as caught:
        separable.score(contexts, ["hello"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["no/such-model", "no-such-model", "/no/such/folder", "./no such folder", "a/b/c", ""])
def test_a_model_that_is_not_there(no_network, name):
    with pytest.raises(CheckpointError, match="^[^\n]+$"):
        Ranker.from_pretrained(name)


def test_an_error_without_a_message_still_gives_one_line(monkeypatch):
    def fail(*arguments, **named):
        raise ConnectionError

    monkeypatch.setattr("polyencoder.hub.resolve.explain_unreachable_hub", lambda: None)
    monkeypatch.setattr("polyencoder.hub.resolve.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=r"^no/such-model: no such folder or file, .* \(ConnectionError\)$"):
        Ranker.from_pretrained("no/such-model")


def test_a_hub_id_fetches_the_files_of_a_model_alone(monkeypatch, make_ranker, tmp_path, sentences):
    ranker = make_ranker("bi")
    ranker.save_pretrained(tmp_path / "snapshot")
    patterns = {}
    monkeypatch.setattr(
        "polyencoder.hub.resolve.snapshot_download",
        lambda name, allow_patterns, local_files_only: (
            patterns.update({name: allow_patterns}) or str(tmp_path / "snapshot")
        ),
    )
    again = Ranker.from_pretrained("someone/model")
    assert patterns == {"someone/model": ["*.json", "*.safetensors", "README.md", "*.svg"]}  # the last two: the card
    assert np.array_equal(again.score(["hi"], sentences), ranker.score(["hi"], sentences))


@pytest.mark.slow
@mostly_long(("architecture", "fields"), ARCHITECTURES, quick=3)
def test_a_ranker_around_a_pretrained_encoder(backbone_folder, no_network, sentences, tmp_path, architecture, fields):
    lengths = {"text_truncate": 20, "label_truncate": 20}
    folder, fields = backbone_folder("bert"), fields | {"n_codes": 2}
    ranker = Ranker.from_backbone(folder, architecture, device="cpu", text=lengths, **fields)
    config = ranker.model.config
    assert (config.architecture, config.n_codes, config.text.text_truncate) == (architecture, 2, 20)
    assert (config.text.start_token, config.text.separator) == ("[CLS]", "[SEP]")
    ranker.save_pretrained(tmp_path / "model")
    again = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    assert again.rank("hello", sentences) == ranker.rank("hello", sentences)


QUICK_PAIRS = [("poly", "bi"), ("cross", "poly"), ("late", "late"), ("bi", "cross")]
SCALED = {"reduction": "mean", "normalize": True, "output_scaling": 4.0}


@pytest.mark.slow
@mostly_long(
    ("architecture", "other"),
    sorted(product(("bi", "poly", "cross", "late"), repeat=2), key=lambda pair: pair not in QUICK_PAIRS),
    quick=len(QUICK_PAIRS),
)
def test_a_ranker_around_anothers_encoder(make_ranker, no_network, sentences, tmp_path, architecture, other):
    make_ranker(other, **SCALED).save_pretrained(tmp_path / "other")
    ranker = Ranker.from_backbone(tmp_path / "other", architecture, device="cpu", n_codes=1, text={"text_truncate": 11})
    config, text = ranker.model.config, ranker.text.config
    scaled = SCALED | {"normalize": "cross" not in (architecture, other)}
    if architecture == "cross" != other:
        scaled["output_scaling"] = 1.0  # 4 is a cosine's
    assert {name: getattr(config, name) for name in SCALED} == scaled
    assert (config.architecture, config.n_codes, text.text_truncate) == (architecture, 1, 11)
    theirs = Ranker.from_pretrained(tmp_path / "other", device="cpu")
    assert text == dataclasses.replace(theirs.text.config, text_truncate=11)
    if architecture == other != "poly":
        assert np.array_equal(ranker.score(["hi"], sentences[:2]), theirs.score(["hi"], sentences[:2]))
    if "cross" not in (architecture, other):
        assert np.array_equal(ranker.encode_candidates(sentences[:2]), theirs.encode_candidates(sentences[:2]))


@pytest.mark.slow
def test_the_scaling_of_a_cosine_is_inherited_by_cosines_alone(make_ranker, tmp_path):
    for name, fields in {"cosine": SCALED, "dot": SCALED | {"normalize": False}}.items():
        make_ranker("bi", **fields).save_pretrained(tmp_path / name)

    def scaling(name, architecture, **fields):
        return Ranker.from_backbone(tmp_path / name, architecture, device="cpu", **fields).model.config.output_scaling

    assert scaling("cosine", "poly") == scaling("cosine", "poly", normalize=True) == 4.0
    assert scaling("cosine", "poly", normalize=False) == scaling("cosine", "cross") == 1.0
    assert scaling("dot", "poly") == scaling("dot", "cross") == scaling("dot", "bi", normalize=False) == 4.0
    assert scaling("dot", "bi", normalize=True) == 1.0
    assert scaling("cosine", "cross", output_scaling=2.0) == 2.0


def test_a_cross_encoder_keeps_how_its_pairs_are_joined(make_ranker, tmp_path):
    make_ranker("cross", pair_start=True).save_pretrained(tmp_path / "cross")
    assert Ranker.from_backbone(tmp_path / "cross", "cross", device="cpu").model.config.pair_start
    assert not Ranker.from_backbone(tmp_path / "cross", "bi", device="cpu").model.config.pair_start


def test_what_another_rankers_encoder_cannot_become(make_ranker, tmp_path):
    make_ranker("bi").save_pretrained(tmp_path / "bi")
    with pytest.raises(ConfigError, match="has the turn_separator 'sep', which cannot be changed"):
        Ranker.from_backbone(tmp_path / "bi", "cross", turn_separator="newline")
    with pytest.raises(ConfigError, match="is of the architecture bi: no convert model can start from it"):
        Ranker.from_backbone(tmp_path / "bi", "convert")
    make_ranker("convert").save_pretrained(tmp_path / "convert")
    with pytest.raises(ConfigError, match="is of the architecture convert: no poly model can start from it"):
        Ranker.from_backbone(tmp_path / "convert", "poly")
    (tmp_path / "bi" / "polyencoder.safetensors").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match="damaged"):
        Ranker.from_backbone(tmp_path / "bi", "cross")


@mostly_long(
    ("architecture", "kind"),
    [("poly", "roberta"), ("bi", "modernbert"), ("cross", "distilbert")]
    + [(architecture, kind) for architecture in ("late", "poly") for kind in ("modernbert", "distilbert")],
    quick=3,
)
def test_padding_changes_nothing_for_other_encoders_either(backbone_folder, sentences, kind, architecture):
    text = {"text_truncate": 20, "label_truncate": 18}
    ranker = Ranker.from_backbone(backbone_folder(kind), architecture, device="cpu", text=text)
    together = torch.as_tensor(ranker.score([sentences[:3], "hello"], sentences))
    alone = torch.cat([torch.as_tensor(ranker.score([sentences[:3]], [s])) for s in sentences], dim=1)
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["poly", "cross"])
def test_default_lengths_shrink_to_what_the_backbone_takes(backbone_folder, caplog, sentences, architecture):
    with caplog.at_level("INFO", logger="polyencoder"):
        ranker = Ranker.from_backbone(backbone_folder("bert"), architecture, device="cpu")
    lengths = (27, 13) if architecture == "cross" else (40, 40)
    assert (ranker.text.config.text_truncate, ranker.text.config.label_truncate) == lengths
    assert ranker.model.config.text == ranker.text.config
    assert f"text_truncate is {lengths[0]}, not 360: the encoder takes 40 tokens" in caplog.text
    ranker.rank([sentences[0]] * 20, [" ".join(sentences)])
    part = Ranker.from_backbone(backbone_folder("bert"), architecture, device="cpu", text={"text_truncate": 30})
    assert part.text.config.label_truncate == (10 if architecture == "cross" else 40)


@pytest.mark.parametrize("name", ["text_truncate", "label_truncate"])
def test_a_backbone_too_small_for_lengths_that_were_given(backbone_folder, name):
    with pytest.raises(ConfigError, match=f"at most 40 tokens, but .* may have 41; give a smaller .*{name}"):
        Ranker.from_backbone(backbone_folder("bert"), text={name: 41})
    with pytest.raises(ConfigError, match="at most 40 tokens, but"):
        Ranker.from_backbone(backbone_folder("bert"), "cross", text={name: 41})


@pytest.fixture(scope="module")
def minilm(minilm_folder) -> Ranker:
    return Ranker.from_backbone(minilm_folder, share_encoders=True, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "best"),
    [
        ("what pets do you have ?", "i have two dogs and a cat ."),
        (["hi !", "what is your job ?"], "i work as a math teacher at a high school ."),
        ("do you like winter sports ?", "skiing in the mountains is my favorite ."),
    ],
)
def test_a_real_encoder_ranks_sensibly(minilm, context, best):
    replies = [
        "i have two dogs and a cat .",
        "i work as a math teacher at a high school .",
        "skiing in the mountains is my favorite .",
        "pizza with extra cheese , please .",
    ]
    assert minilm.rank(context, replies, top_k=1)[0].text == best


@pytest.mark.long
def test_a_real_encoder_on_real_dialogues(minilm, data_path):
    """Zero-shot R20@1 for the last utterances of ConvAI2's first examples: by chance 0.05, on the whole set 0.42."""
    hits, examples = 0, 0
    with open(data_path / "ConvAI2" / "valid_self_original.txt", encoding="utf-8") as lines:
        for line in lines:
            turn, *fields = line.rstrip("\n").split("\t")
            if len(fields) == 3:  # a label, an empty field and the candidates; a line of the persona has none
                label, _, candidates = fields
                question = turn.split(" ", 1)[1]  # behind the line's number
                hits += minilm.rank(question, candidates.split("|"), top_k=1)[0].text == label
                examples += 1
            if examples == 20:
                break
    assert examples == 20
    assert hits / examples >= 0.2


def test_it_says_what_it_is(make_ranker):
    assert repr(make_ranker("poly")) == "Ranker(poly, bert, 0.0M parameters, 16 dimensions, cpu, float32)"
    assert repr(make_ranker("cross")) == "Ranker(cross, bert, 0.0M parameters, cpu, float32)"


def test_an_encoder_is_a_bi_encoder_without_training(backbone_folder, sentences, caplog):
    """sentence-transformers loads one so; a name of the hub does, too, when it is looked up."""
    folder = backbone_folder("bert")
    ranker = Ranker.from_pretrained(folder, device="cpu")
    assert f"{folder} is an encoder: it ranks as a bi-encoder without training" in caplog.text
    assert ranker.source == folder
    same = Ranker.from_backbone(folder, "bi", share_encoders=True, device="cpu")
    torch.testing.assert_close(
        torch.as_tensor(ranker.score(sentences[:2], sentences)), torch.as_tensor(same.score(sentences[:2], sentences))
    )
    assert Ranker.load(folder, device="cpu", dtype="bfloat16").rank("hi", sentences, top_k=1)


def test_without_a_name_it_is_the_default_encoder(monkeypatch):
    calls = []
    monkeypatch.setattr(Ranker, "from_pretrained", lambda name, **options: calls.append((name, options)))
    Ranker.load(device="cpu")
    assert calls == [(DEFAULT_ENCODER, {"device": "cpu"})]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        *[("predict", "rank"), ("save", "save_pretrained"), ("fit", "train_ranker"), ("rerank", "rank")],
        *[("cuda", "to"), ("half", "float16"), ("eval", "evaluation mode")],
        *[("tokenizer", "ranker.text"), ("max_seq_length", "text_truncate")],
    ],
)
def test_names_of_other_libraries_are_answered_with_the_right_call(separable, name, instead):
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{instead}"):
        getattr(separable, name)
    with pytest.raises(AttributeError, match="'Ranker' object has no attribute 'nothing'"):
        _ = separable.nothing
    with pytest.raises(ConfigError, match=r"Ranker\('some/model'\): load a model by Ranker.load"):
        Ranker("some/model")


def test_records_are_ranked_by_their_texts(separable, sentences):
    records = [{"id": str(number), "text": text} for number, text in enumerate(sentences)]
    assert separable.rank(sentences[0], records, top_k=3) == separable.rank(sentences[0], sentences, top_k=3)
    with pytest.raises(InputError, match="candidate 1 is {'txt': 'b'}"):
        separable.rank("hi", ["a", {"txt": "b"}])


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_a_ranker_moves_to_a_device(make_ranker, monkeypatch, architecture):
    ranker = make_ranker(architecture)
    before = ranker.score(["hi"], ["hello"])
    assert ranker.to("cpu") is ranker
    assert (ranker.score(["hi"], ["hello"]) == before).all()
    with pytest.raises(ConfigError, match="device 'nowhere'"):
        ranker.to("nowhere")
    monkeypatch.setattr("polyencoder.encoding.scorer.check_device", torch.device)
    assert ranker.to("meta").device == torch.device("meta") == next(ranker.model.parameters()).device


def test_a_property_of_a_subclass_fails_with_its_own_words(separable):
    class Mine(Ranker):
        @property
        def broken(self):
            return self.text.no_such_thing

    with pytest.raises(AttributeError, match="'TextEncoder' object has no attribute 'no_such_thing'"):
        _ = Mine(separable.model, separable.text).broken
