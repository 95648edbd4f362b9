"""A whole pre-training: it memorises, it goes on bit by bit, its folder is an encoder, rankers begin with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from polyencoder.data.readers import BadExamples
from polyencoder.errors import CheckpointError, ConfigError, InputError
from polyencoder.modeling.loading import load_pretrained
from polyencoder.pretraining import run as module
from polyencoder.pretraining.callbacks import HeldOut
from polyencoder.pretraining.inputs import build_pair_batch, build_pair_input
from polyencoder.pretraining.run import pretrain
from polyencoder.pretraining.start import build_starting_model
from polyencoder.ranker import Ranker
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.settings.train import TrainSettings
from polyencoder.text.tokens import TokenBatch
from polyencoder.text.vocabulary import get_turn_separator
from polyencoder.training.start import build_untrained_ranker
from tests.parameters import mostly_long
from tests.polyencoder.pretraining.conftest import LONGEST, TALKS, TINY


def cross_of(folder) -> TrainSettings:
    """The settings of a cross-encoder's training that starts there."""
    lengths = {"text_truncate": 12, "label_truncate": 12}
    return TrainSettings(
        backbone=str(folder), architecture="cross", train="any.jsonl", out="any", device="cpu", **lengths
    )


def weights(folder):
    return load_file(folder / "model.safetensors") | load_file(folder / "heads.safetensors")


@pytest.mark.long
def test_a_tiny_model_memorises_a_tiny_corpus(make_settings):
    """It sees each sequence with other words masked, and other responses, hundreds of times."""
    sizes = {"n_layers": 2, "embedding_size": 64, "n_heads": 4, "ffn_size": 128}
    rates = {"learning_rate": 2e-3, "warmup_steps": 50, "dropout": 0.0, "attention_dropout": 0.0}
    report = pretrain(make_settings(max_steps=500, evaluate_every=10_000, **sizes, **rates))
    assert report.before["masked_accuracy"] < 0.2
    assert report.before["perplexity"] > 60
    assert report.trained["masked_accuracy"] > 0.8
    assert report.trained["perplexity"] < 3
    assert report.trained["next_accuracy"] > 0.8
    assert not any(line.startswith("masked words") for line in report.at_chance)
    assert report.tokens > 50_000


@pytest.mark.parametrize("next", ["yes-no", "contrastive"])
def test_what_learns_nothing_is_told_from_chance(make_settings, next):
    report = pretrain(make_settings(max_steps=2, warmup_steps=1, learning_rate=1e-6, next=next))
    words, responses = report.at_chance
    assert re.fullmatch(r"masked words have a perplexity of 1\d\d, and \d\d by the frequencies of .*", words)
    assert "next utterances are right in 0." in responses
    assert "by chance" in responses


@pytest.mark.slow
def test_warm_up_and_decay_follow_the_time(make_settings, monkeypatch, caplog):
    """The first 6 % of updates are warm-up, and at the end the rate is small. Each look at the clock is a second."""
    clock = iter(range(10**6))
    monkeypatch.setattr("polyencoder.training.trainer.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr("polyencoder.training.callbacks.log.time", SimpleNamespace(monotonic=lambda: 0.0))
    rates = []

    def seen(self, run, outcome):
        rates.append(run.updates.learning_rate)

    monkeypatch.setattr(module.KeepEncoder, "after_step", seen)
    limits = {"max_steps": None, "max_seconds": 40.0, "warmup_steps": None, "save_every_seconds": 1e9}
    with caplog.at_level("INFO", "polyencoder"):
        report = pretrain(make_settings(schedule="linear", learning_rate=1e-3, evaluate_every=10_000, **limits))
    assert max(rates[5:]) > 7e-4
    assert rates[-1] < 1.5e-4
    assert report.updates == len(rates)
    expected = re.search(r"expected in max_seconds: (\d+) updates, (\d+) of them warm-up", caplog.text)
    assert int(expected[2]) == int(0.06 * int(expected[1])) > 0


@pytest.mark.slow
def test_contrastive_leaves_no_head_for_next_utterances(make_settings, tmp_path):
    first = pretrain(make_settings(next="contrastive"))
    heads = load_file(first.out / "heads.safetensors")
    assert {name.split(".")[0] for name in heads} == {"masked_words"}
    card = (first.out / "README.md").read_text()
    assert "those of a batch" in card
    assert "its head for next utterances" not in card
    Ranker.from_backbone(first.out, "cross", device="cpu", text={"text_truncate": 12, "label_truncate": 12})
    # its last layer is random, so that a bi-encoder stands in its place before training
    assert build_untrained_ranker(cross_of(first.out)).model.config.architecture == "bi"
    sizes = dict.fromkeys(TINY)
    for name in ("yes-no", "contrastive"):  # either goes on with the head that is there
        more = make_settings(vocabulary=None, backbone=str(first.out), out=str(tmp_path / name), next=name, **sizes)
        head = load_file(first.out / "heads.safetensors")["masked_words.bias"]
        assert build_starting_model(more).model.state_dict()["masked_words.bias"].equal(head)
        first = pretrain(more)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_the_flags_of_its_card_score_as_the_pretraining_did(make_settings, monkeypatch, normalize):
    monkeypatch.setattr(
        "polyencoder.pretraining.start.choose_text_vectors", lambda *_: {"reduction": "mean", "normalize": normalize}
    )
    settings = make_settings(next="contrastive", n_positions=60, tokens_per_batch=240)
    folder = pretrain(settings).out
    use = next(line for line in (folder / "README.md").read_text().splitlines() if line.startswith("polyencoder train"))
    options = {"reduction": "mean", "normalize": "--normalize" in use, "output_scaling": float(use.split()[-1])}
    assert "--reduction mean" in use
    assert "--fine-tuned all" in use  # the embeddings too
    bi = Ranker.from_backbone(folder, "bi", device="cpu", text={"text_truncate": 30, "label_truncate": 30}, **options)
    started = build_starting_model(settings)
    started.model.encoder.model.load_state_dict(bi.model.context_tower.model.state_dict())
    contexts, responses = [talk[:1] for talk in TALKS], [talk[1] for talk in TALKS]
    inputs = [
        build_pair_input(started.text, *pair, longest=60, apart=True) for pair in zip(contexts, responses, strict=True)
    ]
    batch = build_pair_batch(inputs, pad_id=started.text.pad_id)
    with torch.no_grad():
        expected = started.model.eval().score_responses(batch.contexts, contexts=len(TALKS))
    scores = torch.stack([torch.as_tensor(bi.score([context], responses))[0] for context in contexts])
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_a_sentence_encoder_is_compared_by_its_own_vectors(make_settings, minilm_folder):
    """A bi-encoder that is made of it has the same vectors."""
    options = {**dict.fromkeys(TINY), "vocabulary": None, "backbone": str(minilm_folder), "next": "contrastive"}
    model = build_starting_model(make_settings(**options)).model
    bi = Ranker.from_backbone(minilm_folder, "bi", device="cpu").model.config
    assert (model.reduction, model.normalize) == (bi.reduction, bi.normalize) == ("mean", True)
    assert build_starting_model(make_settings(**options, reduction="first")).model.reduction == "first"


@pytest.mark.slow
def test_the_folder_is_an_encoder_with_its_tokenizer_and_card(make_settings, tmp_path, drawn_curves):
    settings = make_settings()
    report = pretrain(settings)
    assert (report.updates, report.resumed) == (6, False)
    model = AutoModel.from_pretrained(report.out).eval()
    tokenizer = AutoTokenizer.from_pretrained(report.out)
    assert tokenizer.mask_token == "[MASK]"
    backbone = load_pretrained(report.out).eval()
    pair = tokenizer(TALKS[0][0], TALKS[0][1], return_tensors="pt")
    text = build_starting_model(settings).text
    ours = text.tokenize_context([TALKS[0][0]]) + text.tokenize_candidates([TALKS[0][1]])[0][1:]
    assert pair["input_ids"][0].tolist() == ours
    tokens = TokenBatch(pair["input_ids"], pair["attention_mask"].bool(), pair["token_type_ids"])
    torch.testing.assert_close(backbone(tokens), model(**pair).last_hidden_state, rtol=1e-4, atol=1e-5)
    card = (report.out / "README.md").read_text()
    assert "6 updates" in card
    assert "talks.jsonl" in card
    assert str(tmp_path) not in card
    assert "a cross-encoder begins with its head for next utterances" in card
    assert f"--text-truncate {LONGEST} --label-truncate {LONGEST} --fine-tuned all\n" in card
    assert "<svg" in (report.out / "curve.svg").read_text()
    record = json.loads((report.out / "training" / "run.json").read_text())
    assert record["options"]["max_steps"] == 6


@pytest.mark.slow
def test_rankers_begin_with_it(make_settings):
    """A cross-encoder scores as the head, and training is compared with it."""
    report = pretrain(make_settings())
    start = partial(Ranker.from_backbone, report.out, device="cpu", text={"text_truncate": 12, "label_truncate": 12})
    cross = start("cross")
    heads = load_file(report.out / "heads.safetensors")
    assert cross.model.linear.weight.equal(heads["next_utterance.weight"])
    assert cross.model.linear.bias.equal(heads["next_utterance.bias"])
    assert get_turn_separator(cross.model.config.text) == "newline"
    started = build_starting_model(make_settings(vocabulary=None, backbone=str(report.out), **dict.fromkeys(TINY)))
    inputs = [build_pair_input(started.text, [TALKS[1][0]], response, longest=LONGEST) for response in TALKS[1][1:]]
    batch = build_pair_batch([replace(pair, follows=True) for pair in inputs], pad_id=started.text.pad_id)
    with torch.no_grad():
        expected = started.model.eval().score_next(batch.contexts)
    scores = torch.as_tensor(cross.score([[TALKS[1][0]]], TALKS[1][1:]))[0]
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    untrained = build_untrained_ranker(cross_of(report.out)).model
    assert untrained.config.architecture == "cross"
    assert untrained.linear.weight.equal(heads["next_utterance.weight"])
    bi = start("bi", turn_separator="sep")
    assert get_turn_separator(bi.model.config.text) == "sep"
    mean = start("cross", reduction="mean")
    assert not mean.model.linear.weight.equal(heads["next_utterance.weight"])


@pytest.mark.slow
def test_a_backbone_goes_on_with_its_heads(make_settings, tmp_path):
    first = pretrain(make_settings())
    sizes = dict.fromkeys(TINY)
    settings = make_settings(vocabulary=None, backbone=str(first.out), out=str(tmp_path / "more"), **sizes)
    started = build_starting_model(settings)
    had = weights(first.out)
    state = started.model.state_dict()
    for name in ("next_utterance.weight", "masked_words.bias", "masked_words.transform.dense.weight"):
        assert state[name].equal(had[name])
    second = pretrain(settings)
    assert second.before["loss"] == pytest.approx(first.trained["loss"], rel=1e-4)


@pytest.mark.slow
@mostly_long(("accumulate", "next"), [(2, "yes-no"), (1, "yes-no"), (1, "contrastive")], quick=1)
def test_a_killed_run_goes_on_bit_by_bit(make_settings, tmp_path, monkeypatch, accumulate, next):
    options = {"max_steps": 9, "save_every_seconds": 1e-9, "accumulate": accumulate, "next": next}
    whole = pretrain(make_settings(out=str(tmp_path / "whole"), **options))
    settings = make_settings(out=str(tmp_path / "killed"), **options)

    def killed(self, run, outcome):
        if run.updates.count == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HeldOut, "after_step", killed)
        with pytest.raises(KeyboardInterrupt):
            pretrain(settings)
    again = pretrain(settings)
    assert again.resumed
    assert again.trained == whole.trained
    assert again.tokens == whole.tokens
    expected = weights(whole.out)
    for name, tensor in weights(again.out).items():
        assert tensor.equal(expected[name]), name


@pytest.mark.slow
def test_a_finished_run_has_nothing_to_do_and_another_one_is_refused(make_settings):
    first = pretrain(make_settings())
    second = pretrain(make_settings())
    assert second.resumed
    assert second.updates == 6
    assert second.trained == first.trained
    with pytest.raises(CheckpointError, match="was begun with learning_rate"):
        pretrain(make_settings(learning_rate=1e-3))


@pytest.mark.slow
def test_a_finished_run_goes_on_to_a_later_end_as_if_it_had_been_its_own(make_settings, tmp_path):
    whole = pretrain(make_settings(out=str(tmp_path / "whole"), max_steps=9, warmup_steps=2))
    pretrain(make_settings(max_steps=4, warmup_steps=2))
    more = pretrain(make_settings(max_steps=9, warmup_steps=2))
    assert more.resumed
    assert more.updates == 9
    assert more.trained == whole.trained
    expected = weights(whole.out)
    for name, tensor in weights(more.out).items():
        assert tensor.equal(expected[name]), name
    with pytest.raises(CheckpointError, match="was begun with warmup_steps 2, not 3"):
        pretrain(make_settings(max_steps=12, warmup_steps=3))


def test_another_corpus_is_no_resumption(make_settings):
    settings = make_settings(max_steps=4)
    pretrain(settings)
    (file,) = settings.data.corpus
    Path(file).write_text(Path(file).read_text().partition("\n")[2])
    with pytest.raises(CheckpointError, match="was begun with data '1 files, digest"):
        pretrain(make_settings(max_steps=5))


def test_a_run_whose_learning_rates_depend_on_its_end_keeps_it(make_settings):
    pretrain(make_settings(schedule="linear"))
    with pytest.raises(CheckpointError, match="was begun with max_steps 6, not 9"):
        pretrain(make_settings(schedule="linear", max_steps=9))


@pytest.mark.slow
def test_bad_lines_are_an_error_or_skipped_and_counted(make_settings, talks, caplog, tmp_path):
    good = tmp_path / "good.jsonl"
    with open(talks) as file:
        good.write_text(file.read())
    with open(talks, "a") as file:
        file.write('{"turns": 5}\n')
    with pytest.raises(InputError, match=r"talks.jsonl, line 5: 'turns' is neither"):
        pretrain(make_settings(valid=str(good)))
    assert not (tmp_path / "out").exists()
    pretrain(make_settings(valid=str(good), skip_bad_examples=True))
    assert "1 bad record was left out" in caplog.text
    assert BadExamples(skip=True).summarize() is None


def test_a_share_of_the_documents_is_held_out(make_settings, caplog):
    pretrain(make_settings(valid=None, held_out=0.5))
    with pytest.raises(InputError, match="no example to evaluate on"):
        pretrain(make_settings(valid=None, held_out=0.0))


@pytest.mark.parametrize("text", ["", '{"turns": ["hello"]}\n' * 3, '{"sentences": []}\n'])
def test_a_corpus_without_any_example_is_not_blamed_on_what_is_held_out(make_settings, tmp_path, text):
    (tmp_path / "corpus.jsonl").write_text(text)
    with pytest.raises(InputError, match="no training examples, with 1.00% held out; an example is a turn"):
        pretrain(make_settings(corpus=(str(tmp_path / "corpus.jsonl"),), valid=None))


def test_what_is_held_out_is_of_many_documents(make_settings, tmp_path, monkeypatch):
    articles = tmp_path / "articles.jsonl"
    lines = [json.dumps({"sentences": [f"this is {article} {n} ." for n in range(20)]}) for article in range(10)]
    articles.write_text("\n".join(lines))
    seen = []
    monkeypatch.setattr(
        module,
        "HeldOut",
        lambda objective, examples, *arguments, **options: (
            seen.extend(examples),
            HeldOut(objective, examples, *arguments, **options),
        )[1],
    )
    pretrain(make_settings(valid=str(articles), held_out_examples=19, max_steps=3))
    assert len(seen) == 19
    assert len({example.label.split()[2] for example in seen}) > 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"corpus": ()}, "corpus is ..; it must be"),
        ({"vocabulary": None}, "give one of vocabulary"),
        ({"backbone": "x", "vocabulary": None}, "embedding_size is not read with backbone"),
        ({"max_steps": None}, "a run without an end"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"mask_probability": 1.0}, "mask_probability is 1.0"),
        ({"reduction": "mean"}, "reduction is read only where next is contrastive"),
        ({"reduction": "most", "next": "contrastive"}, "reduction is 'most'"),
        ({"next": "maybe"}, "next is 'maybe'; it must be one of yes-no, contrastive"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0"),
        ({"n_layers": 0}, "n_layers is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"bf16": True, "precision": "float16"}, "contradict each other"),
    ],
)
def test_settings_that_cannot_be_are_errors(make_settings, fields, message):
    with pytest.raises(ConfigError, match=message):
        make_settings(**fields)


def test_a_length_of_nothing_is_an_error(make_settings):
    with pytest.raises(ConfigError, match="text_truncate is 0; it must be at least 3"):
        build_starting_model(make_settings(text_truncate=0))


def test_the_papers_numbers_are_the_defaults():
    settings = PretrainingSettings(corpus=("c",), out="o", vocabulary="v", max_steps=1_000)
    config = settings.objective.training
    sizes = settings.encoder
    assert (sizes.n_layers, sizes.embedding_size, sizes.n_heads, sizes.ffn_size) == (12, 768, 12, 3072)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.betas) == ("adam", 2e-4, (0.9, 0.98))
    assert (config.optimizer.weight_decay, config.schedule.name, config.schedule.warmup_updates) == (0, "invsqrt", 60)
    assert settings.objective.tokens_per_batch == 32_000
    assert (sizes.dropout, sizes.attention_dropout) == (0.1, 0.1)


@pytest.mark.slow
@mostly_long("kind", ["bert", "roberta", "distilbert", "modernbert"], quick=2)
def test_each_family_of_encoders_goes_on(make_settings, backbone_folder, kind):
    """With its own special tokens, with segments or without, and with a mask token that may have to be added."""
    settings = make_settings(
        **dict.fromkeys(TINY), vocabulary=None, backbone=str(backbone_folder(kind)), tokens_per_batch=400, max_steps=3
    )
    report = pretrain(settings)
    assert report.updates == 3
    tokenizer = AutoTokenizer.from_pretrained(report.out)
    assert tokenizer.mask_token in ("[MASK]", "<mask>")
    assert tokenizer.mask_token_id < AutoModel.from_pretrained(report.out).get_input_embeddings().num_embeddings
    before, after = (
        load_pretrained(path).model.get_input_embeddings().weight for path in (settings.encoder.backbone, report.out)
    )
    assert not before.equal(after[: len(before)])
    bi = Ranker.from_backbone(report.out, "bi", device="cpu", text={"text_truncate": 12, "label_truncate": 12})
    assert torch.as_tensor(bi.score([["hello , you"]], ["hello ?", "you ?"])).isfinite().all()
