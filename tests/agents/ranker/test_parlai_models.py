"""Models that ParlAI's own agents trained, under ours: the same scores, and never written over."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
import torch
from parlai.core.agents import create_agent_from_model_file
from parlai.core.message import Message
from parlai.core.opt import Opt
from parlai.scripts.train_model import TrainModel
from tokenizers import ByteLevelBPETokenizer
from typer.testing import CliRunner

from polyencoder.cli.main import app
from polyencoder.config import RankerConfig
from polyencoder.errors import CheckpointError
from polyencoder.importing import import_parlai, is_parlai_model, parlai_text, read_parlai_model
from polyencoder.modeling import CrossEncoder
from polyencoder.ranker import Ranker

THEIRS = {"biencoder": "transformer/biencoder", "polyencoder": "transformer/polyencoder"}
THEIRS |= {"crossencoder": "transformer/crossencoder", "ranker": "transformer/ranker"}
OURS = {"ranker": "biencoder"}
TRAINING = {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "n_positions": 64, "n_segments": 2}
TRAINING |= {"variant": "xlm", "activation": "gelu", "learn_positional_embeddings": True, "embeddings_scale": False}
TRAINING |= {"share_encoders": False, "reduction_type": "first", "output_scaling": 1.0, "poly_n_codes": 5}
TRAINING |= {"text_truncate": 14, "label_truncate": 8, "history_size": 3, "dict_maxtokens": 60, "dict_lower": True}
TRAINING |= {"dict_tokenizer": "bpe", "lr_scheduler": "none", "optimizer": "adam", "learningrate": 1e-2}
TRAINING |= {"candidates": "inline", "eval_candidates": "inline", "max_train_steps": 8, "batchsize": 8, "seed": 1}
TRAINING |= {"short_final_eval": True, "validation_max_exs": 8, "validation_every_n_secs": 1e9, "loglevel": "error"}

DEFAULTS = {"variant": "aiayn", "activation": "relu", "share_encoders": True, "reduction_type": "mean", "n_segments": 0}
DEFAULTS |= {"embeddings_scale": True, "learn_positional_embeddings": False, "dict_tokenizer": "re"}
DEFAULTS |= {"text_truncate": None, "label_truncate": None, "truncate": 62, "history_size": -1}
WHOLE_DICTIONARY = {"dict_maxtokens": -1, "dict_lower": False}

GPT2 = {"variant": "prelayernorm", "dict_tokenizer": "gpt2", "share_encoders": False, **WHOLE_DICTIONARY}

MULTIHEAD = {"poly_attention_type": "multihead", "poly_attention_num_heads": 8, "polyencoder_type": "n_first"}

KINDS = [
    ("biencoder", {}),
    ("biencoder", {"reduction_type": "mean", "output_scaling": 0.06, "share_word_embeddings": False}),
    ("polyencoder", {}),
    ("polyencoder", {"output_scaling": 0.06, "codes_attention_type": "sqrt", "poly_attention_type": "sqrt"}),
    ("polyencoder", {"codes_attention_type": "multihead", "poly_attention_type": "multihead", "output_scaling": 0.06}),
    ("polyencoder", MULTIHEAD),
    ("polyencoder", {"polyencoder_type": "n_first", "reduction_type": "mean", "n_segments": 0}),
    ("polyencoder", {"learn_positional_embeddings": False, "embeddings_scale": True, "dict_tokenizer": "re"}),
    ("polyencoder", {"person_tokens": True, "force_fp16_tokens": True, "delimiter": " | "}),
    # ParlAI's own defaults, as far as they shape a model
    ("biencoder", DEFAULTS),
    ("ranker", DEFAULTS),
    ("polyencoder", DEFAULTS | {"dict_tokenizer": "space"}),
    ("crossencoder", DEFAULTS | {"reduction_type": "first", "truncate": 30}),
    ("biencoder", {"variant": "prelayernorm", "share_encoders": True, "dict_tokenizer": "split"}),
    ("polyencoder", GPT2),
    ("polyencoder", {"variant": "bart", "dict_tokenizer": "bytelevelbpe", **WHOLE_DICTIONARY}),
    ("ranker", {"variant": "aiayn", "dict_tokenizer": "slow_bytelevel_bpe", **WHOLE_DICTIONARY}),
    ("ranker", {"wrap_memory_encoder": True, "share_encoders": True, "share_word_embeddings": False}),
    ("crossencoder", {}),
    ("crossencoder", {"reduction_type": "mean", "output_scaling": 0.06, "truncate": 12, "text_truncate": None}),
]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory, labels):
    """Options for a byte-level vocabulary, where ParlAI would download GPT-2's."""
    folder = tmp_path_factory.mktemp("datapath")
    (folder / "gpt2").mkdir()
    learner = ByteLevelBPETokenizer(add_prefix_space=False)
    learner.train_from_iterator([*labels, "where is the tell me"] * 2, vocab_size=300, show_progress=False)
    learner.save_model(str(folder / "gpt2"))
    (folder / "gpt2" / "vocab.json").rename(folder / "gpt2" / "encoder.json")
    (folder / "gpt2" / "merges.txt").rename(folder / "gpt2" / "vocab.bpe")
    given = {"bpe_vocab": "encoder.json", "bpe_merge": "vocab.bpe"}
    return {"datapath": str(folder)} | {name: str(folder / "gpt2" / file) for name, file in given.items()}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, task, gpt2):
    """(model, **options) -> the file of a model that ParlAI's agent trained for a few steps."""
    made = {}

    def make(model, **options):
        key = f"{model} {sorted(options.items())}"
        if key not in made:
            path = tmp_path_factory.mktemp("theirs") / "model"
            given = {**TRAINING, "model": THEIRS[model], "model_file": str(path), **task, **gpt2, **options}
            given = {name: value for name, value in given.items() if value is not None}
            if model != "polyencoder":
                given.pop("poly_n_codes")
            torch.manual_seed(0)
            TrainModel.main(**given)
            made[key] = path
        return made[key]

    return make


@pytest.fixture
def both(theirs, make_agent):
    """(model, kind's options, **options) -> ParlAI's agent and ours on the same file."""

    def make(model, trained_with, **options):
        path = theirs(model, **trained_with)
        names = (THEIRS[model], OURS.get(model, model))
        return [
            make_agent(name, model_file=path, datatype="valid", return_cand_scores=True, **options) for name in names
        ]

    return make


def scores(replies):
    pairs = [zip(reply["text_candidates"], map(float, reply["sorted_scores"]), strict=True) for reply in replies]
    return [dict(texts) for texts in pairs]


ODD = [
    "",
    " ",
    "?!... ,;",
    "😀👩\u200d👧 ☃",
    "zyx qwv",
    "__unk__ __start__",
    "\x1f\u2028\xa0",
    "two  spaces",
    "long " * 90,
]


def examples(count, labels):
    """Episodes of one to three turns with five candidates each, of the task's words and of odd texts."""
    rng = random.Random(7)
    texts = [*labels, *ODD, "where is the cat ?", "Tell ME , is the Dog with you ?", "i look for\na cow ."]
    made = []
    for _ in range(count):
        turns = [rng.choice(texts) for _ in range(rng.randint(0, 2))] + [
            rng.choice(["where ?", "a cat . " * 3, "hi 😀"])
        ]
        made.append(episode(*turns, candidates=rng.sample(texts, 5)))
    return made


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).digest() for file in path.parent.iterdir()}


def episode(*turns, candidates):
    return [{"text": text, "eval_labels": candidates[:1], "label_candidates": candidates} for text in turns]


@pytest.mark.parametrize(("model", "options"), KINDS)
def test_the_same_scores_and_metrics(model, options, theirs, both, respond, evaluate, labels):
    path = theirs(model, **options)
    before = digests(path)
    candidates = [*labels, "hen , hen ? hen ! hen ; hen & pig", "Ωμέγα ΟΔΟΣ", "unseen words 😀"]
    episodes = [
        episode("where is the cat ?", candidates=candidates),
        episode("Hello THERE\nmy friend", "where\n\nis the dog ?", "tell me", "and __newln__ ?", candidates=candidates),
        episode("word " * 20 + "where is the unknowable animal, cat?", candidates=candidates),
    ]
    batches = [episodes, examples(200, labels)]  # ParlAI wants equally many candidates in each example of a batch
    agents = both(model, options)
    expected, found = ([one for batch in batches for one in scores(respond(agent, *batch))] for agent in agents)
    size = max(abs(score) for reply in expected for score in reply.values())
    for theirs_of_one, ours_of_one in zip(expected, found, strict=True):
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
    expected, found = (
        scores(respond(agent, episode("__null__ where is __null__ it ?", candidates=texts)))[0]
        for agent in both(model, options | {"dict_tokenizer": "re"})
    )
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert found["a cat"] == pytest.approx(found["a __null__ cat"])


def test_reduction_max_where_parlai_pads_nothing(both, respond):
    candidates = ["cat", "dog", "cow"]
    words = episode("cat", candidates=candidates)
    agents = both("biencoder", {"reduction_type": "max", "dict_tokenizer": "re"})
    expected, found = (scores(respond(agent, words))[0] for agent in agents)
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_user_of_the_library_gets_the_same_ranks(theirs, both, respond, labels):
    path = theirs("polyencoder")
    ranker = Ranker(*import_parlai(path), device="cpu")
    reply = respond(both("polyencoder", {})[0], episode("where is the owl ?", candidates=labels))[0]
    expected = scores([reply])[0]
    found = ranker.rank(["where is the owl ?"], labels, top_k=len(labels))
    assert {match[1]: match[2] for match in found} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("model", "options"), [("biencoder", DEFAULTS), ("ranker", DEFAULTS), ("polyencoder", GPT2)])
def test_every_door(model, options, theirs, both, respond, labels, tmp_path):
    """The library, an imported folder, and training that starts from it: the same scores, but for what is learnt."""
    path = theirs(model, **options)
    candidates = [*labels, *ODD]
    expected = scores(respond(both(model, options)[0], episode("is it\nthe owl ?", candidates=candidates)))[0]
    assert CliRunner().invoke(app, ["import", str(path), str(tmp_path / "folder")]).exit_code == 0
    for where in (path, tmp_path / "folder"):
        ranker = Ranker.from_pretrained(where, device="cpu")
        found = {match.text: match.score for match in ranker.rank(["is it\nthe owl ?"], candidates)}
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("model", "options"), [("biencoder", DEFAULTS), ("ranker", DEFAULTS), ("polyencoder", GPT2)])
def test_training_starts_from_what_it_is(model, options, theirs, make_agent, respond, tmp_path, task, labels):
    """With the flags that say the same: the first scores are those of the model, perceptron and all."""
    path = theirs(model, **options)
    same = {"reduction_type": options.get("reduction_type", "first"), "share_encoders": options["share_encoders"]}
    same |= {"poly_n_codes": 5} if model == "polyencoder" else {}
    sizes = {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "n_positions": 64, "history_size": -1}
    lengths = {"text_truncate": 14, "label_truncate": 8}
    new = make_agent(OURS.get(model, model), init_model=str(path), dict_file=None, **same, **sizes, **lengths)
    old = make_agent(OURS.get(model, model), model_file=path, datatype="valid", return_cand_scores=True)
    new.opt["return_cand_scores"] = True
    asked = {**episode("where is it ?", candidates=labels)[0]}
    found, expected = (scores(respond(agent, asked))[0] for agent in (new, old))
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_normalized_vectors_of_fixed_candidates(both, respond, labels, tmp_path):
    """What ParlAI's vectors of length 1 are: with inline candidates it divides by another length (see the weights)."""
    options = {**DEFAULTS, "normalize_sent_emb": True, "candidates": "batch"}
    candidates = [*labels, *(one for one in ODD if one.strip())]
    (tmp_path / "candidates.txt").write_text("\n".join(candidates) + "\n", encoding="utf-8")
    fixed = {"eval_candidates": "fixed", "fixed_candidates_path": str(tmp_path / "candidates.txt")}
    with pytest.warns(UserWarning, match="normalize_sent_emb divides inline candidates"):
        agents = both("biencoder", options, **fixed, encode_candidate_vecs=False)
    expected, found = (scores(respond(agent, {"text": "where is the cat ?"}))[0] for agent in agents)
    assert found == pytest.approx(expected, abs=1e-5)
    assert -1.0001 <= min(expected.values()) < max(expected.values()) <= 1.0001


@pytest.mark.parametrize("model", ["biencoder", "polyencoder", "crossencoder"])
def test_from_python_without_any_flag(model, theirs, labels, tmp_path):
    """ParlAI's options know none of our flags; they say `train`, which is not done here."""
    path = theirs(model)
    before = digests(path)
    agent = create_agent_from_model_file(str(path), {"model": model})
    agent.observe(Message({"text": "where is the cat ?", "label_candidates": labels, "episode_done": True}))
    assert agent.act()["text"] in labels
    with pytest.raises(CheckpointError, match="is ParlAI's own model, which training would overwrite"):
        agent.save(str(path))
    assert digests(path) == before
    agent.save(str(tmp_path / "own"))
    assert not is_parlai_model(tmp_path / "own")


@pytest.mark.parametrize("model", ["polyencoder", "crossencoder"])
def test_training_goes_on_in_a_file_of_our_own(model, theirs, tmp_path, task, evaluate):
    source = theirs("polyencoder")
    before = digests(source)
    options = {"init_model": str(source), "model_file": str(tmp_path / "new"), "n_positions": 64, "text_truncate": 20}
    options |= {"embedding_size": 32, "ffn_size": 64, "n_layers": 2, "n_heads": 2, "label_truncate": 16}
    options |= {"batchsize": 8, "num_epochs": 1.0, "loglevel": "error", "model": model, **task}
    TrainModel.main(**options)
    assert digests(source) == before
    assert (tmp_path / "new.tokenizer.json").is_file()
    assert not is_parlai_model(tmp_path / "new")
    config = RankerConfig.from_json(torch.load(tmp_path / "new", weights_only=True)["ranker_config"], origin="new")
    assert config.text.truncation == "tokens"
    assert config.text.separator == "\n"
    assert 0 <= evaluate(tmp_path / "new")["hits@1"] <= 1


def test_training_on_parlais_own_file_is_refused(theirs, task):
    source = theirs("polyencoder")
    before = digests(source)
    with pytest.raises(CheckpointError, match="start from this one with --init-model"):
        TrainModel.main(model="polyencoder", model_file=str(source), num_epochs=1.0, loglevel="error", **task)
    assert digests(source) == before


@pytest.mark.parametrize("marked", [False, True])
def test_commands_whose_datatype_is_that_of_the_training(marked, copy, make_agent, respond, labels, task):
    """`parlai eval_model` on the command line takes `--datatype train` from the model's options; so do others.

    Published models' options say besides what else only a training loop says.
    """
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    path.with_suffix(".opt").write_text(json.dumps(opt | ({"load_from_checkpoint": True} if marked else {})))
    agent = make_agent("polyencoder", model_file=path, datatype="train", load_from_checkpoint=marked)
    assert respond(agent, episode("where is the cat ?", candidates=labels))[0]["text"] in labels
    before = digests(path)
    with pytest.raises(CheckpointError, match="start from this one with --init-model"):
        TrainModel.main(model="polyencoder", model_file=str(path), num_epochs=1.0, loglevel="error", **task)
    assert digests(path).items() >= before.items()  # a marked one has begun to train: there is a record of it


def test_lengths_may_be_given(theirs, make_agent):
    path = theirs("polyencoder")
    assert make_agent("polyencoder", model_file=path, datatype="valid").dict.text.config.text_truncate == 14
    shorter = make_agent("polyencoder", model_file=path, datatype="valid", text_truncate=7, history_size=1)
    assert (shorter.dict.text.config.text_truncate, shorter.dict.text.config.history_size) == (7, 1)


def test_lengths_never_exceed_the_positions(copy):
    """ParlAI's own number of positions is that of the longest text, without the start and end tokens around it."""
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    for options, expected in [
        ({"n_positions": None, "truncate": -1}, (12, 8)),
        ({"n_positions": 64, "text_truncate": -1, "label_truncate": None, "truncate": -1}, (62, 64)),
        ({"n_positions": 64, "text_truncate": None, "label_truncate": 9, "truncate": 20}, (20, 9)),
        ({"n_positions": None, "text_truncate": -1, "label_truncate": 9, "truncate": -1}, (7, 9)),
        ({"n_positions": 40, "model": THEIRS["crossencoder"], "text_truncate": 50, "label_truncate": 9}, (38, 9)),
    ]:
        path.with_suffix(".opt").write_text(json.dumps({**opt, **options}))
        config = parlai_text(path)[1]
        assert (config.text_truncate, config.label_truncate) == expected


def test_another_architecture_is_named(theirs, make_agent):
    with pytest.raises(CheckpointError, match="holds a polyencoder, not a biencoder"):
        make_agent("biencoder", model_file=theirs("polyencoder"), datatype="valid")


@pytest.fixture
def copy(theirs, tmp_path):
    """(model, **options) -> a copy of such a model, to be damaged."""

    def make(model, **options):
        source = theirs(model, **options)
        for file in source.parent.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return tmp_path / "model"

    return make


def test_missing_and_left_over_tensors_are_named(copy):
    path = copy("polyencoder")
    states = torch.load(path, weights_only=True)
    states["model"]["surplus"] = states["model"].pop("codes")
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="codes is missing"):
        read_parlai_model(path)
    states["model"]["codes"] = states["model"]["surplus"]
    torch.save(states, path)
    with pytest.raises(CheckpointError, match="surplus has no place in this model"):
        read_parlai_model(path)


def test_the_dictionary_of_another_model(copy):
    path = copy("polyencoder")
    with open(f"{path}.dict", "a", encoding="utf-8") as file:
        file.write("one more\t1\n")
    with pytest.raises(CheckpointError, match=r"has embeddings of \d+ tokens, but .*model\.dict has \d+"):
        import_parlai(path)


def test_old_files(copy):
    """What torch before 1.6 wrote is no zip archive."""
    path = copy("crossencoder")
    expected = import_parlai(path)[0].state_dict()
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    model, _ = import_parlai(path)
    assert isinstance(model, CrossEncoder)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def test_what_could_run_code_is_named_and_not_read(copy, malicious_pickle):
    path = copy("polyencoder")
    torch.save({"model": {}, "opt": Opt({"a": 1})}, path)
    with pytest.raises(CheckpointError, match=r"it holds a parlai\.core\.opt\.Opt"):
        import_parlai(path)
    data, witness = malicious_pickle(2)
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        import_parlai(path)
    assert not witness.exists()


def test_other_models_are_named(copy):
    path = copy("polyencoder")
    opt = json.loads(path.with_suffix(".opt").read_bytes())
    for name in ("transformer/generator", "polyencoder", "bert_ranker/bi_encoder_ranker"):
        path.with_suffix(".opt").write_text(json.dumps({**opt, "model": name}))
        assert not is_parlai_model(path)
        with pytest.raises(CheckpointError, match=f"a '{name}' by its .opt file"):
            import_parlai(path)
    path.with_suffix(".opt").write_text(
        json.dumps({**opt, "model": "parlai.agents.transformer.polyencoder:PolyencoderAgent"})
    )
    assert is_parlai_model(path)


def test_a_model_whose_schedule_left_numbers_of_numpys(theirs, task, evaluate, tmp_path):
    """ParlAI's `invsqrt`: read without running any code, and trained on."""
    path = theirs("biencoder", lr_scheduler="invsqrt", warmup_updates=2)
    assert Ranker.from_pretrained(path).score(["hello"], ["bye", "you"]).isfinite().all()
    assert evaluate(path, model="biencoder")["loss"] > 0
