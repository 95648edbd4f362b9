"""Models that ParlAI's own agents trained for a few steps, and both agents on their files."""

from __future__ import annotations

import hashlib

import pytest
import torch
from parlai.scripts.train_model import TrainModel
from tokenizers import ByteLevelBPETokenizer

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


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory, labels):
    """Options for a byte-level vocabulary, where ParlAI would download GPT-2's."""
    folder = tmp_path_factory.mktemp("datapath")
    (folder / "gpt2").mkdir()
    learner = ByteLevelBPETokenizer(add_prefix_space=False)
    learner.train_from_iterator([*labels, "where is the tell me"] * 2, vocab_size=300, show_progress=False)
    learner.save_model(str(folder / "gpt2"))
    (folder / "gpt2" / "vocab.json").rename(folder / "gpt2" / "encoder.json")
    (folder / "gpt2" / "merges.txt").rename(folder / "gpt2" / "vocab.bpe")
    files = {"bpe_vocab": "encoder.json", "bpe_merge": "vocab.bpe"}
    return {"datapath": str(folder)} | {name: str(folder / "gpt2" / file) for name, file in files.items()}


@pytest.fixture(scope="session")
def theirs(tmp_path_factory, task, gpt2):
    """(model, **options) -> the file of a model that ParlAI's agent trained for a few steps."""
    models = {}

    def make(model, **options):
        key = f"{model} {sorted(options.items())}"
        if key not in models:
            path = tmp_path_factory.mktemp("theirs") / "model"
            training = {**TRAINING, "model": THEIRS[model], "model_file": str(path), **task, **gpt2, **options}
            training = {name: value for name, value in training.items() if value is not None}
            if model != "polyencoder":
                training.pop("poly_n_codes")
            torch.manual_seed(0)
            TrainModel.main(**training)
            models[key] = path
        return models[key]

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


@pytest.fixture
def copy(theirs, tmp_path):
    """(model, **options) -> a copy of such a model, to be damaged."""

    def make(model, **options):
        source = theirs(model, **options)
        for file in source.parent.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        return tmp_path / "model"

    return make


def scores(replies):
    pairs = [zip(reply["text_candidates"], map(float, reply["sorted_scores"]), strict=True) for reply in replies]
    return [dict(texts) for texts in pairs]


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).digest() for file in path.parent.iterdir()}


def episode(*turns, candidates):
    return [{"text": text, "eval_labels": candidates[:1], "label_candidates": candidates} for text in turns]
