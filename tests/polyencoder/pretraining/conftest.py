"""Shared: a tiny vocabulary with [S] and [MASK], a tiny model with its heads, a corpus of few conversations."""

from __future__ import annotations

import json

import pytest
import torch

from polyencoder.config import TextConfig
from polyencoder.importing.folder import save_tokenizer
from polyencoder.modeling.encoder_config import build_scratch_config
from polyencoder.modeling.loading import build_backbone
from polyencoder.pretraining.heads import PretrainingModel
from polyencoder.pretraining.masking import Masking
from polyencoder.settings.pretrain import PretrainingSettings
from polyencoder.text import TextEncoder
from polyencoder.text.learning import ROLES, PieceSettings, count_characters, learn_pieces

TALKS = [
    ["hello , how are you today ?", "i am fine , thank you .", "what do you do ?", "i am a teacher ."],
    ["do you have any pets ?", "i have two dogs and a cat .", "that is great !"],
    ["do you like to ski ?", "i like to ski in the mountains .", "my brother likes it too !"],
    ["what do you teach ?", "i teach math at a high school .", "how many are there ?", "thirty of them ."],
]
LONGEST = 24
TINY = {"n_layers": 1, "embedding_size": 32, "n_heads": 2, "ffn_size": 64, "n_positions": LONGEST}


@pytest.fixture(scope="session")
def piece_tokenizer():
    texts, settings = [turn for talk in TALKS for turn in talk] * 2, PieceSettings(size=120)
    return learn_pieces(texts, count_characters(texts, settings), settings)


@pytest.fixture
def piece_text(piece_tokenizer) -> TextEncoder:
    tokens = {"pad_token": "[PAD]", "start_token": "[S]", "end_token": "[S]", "separator": "[NEWLINE]"}
    return TextEncoder(piece_tokenizer, TextConfig(text_truncate=LONGEST, label_truncate=LONGEST, **tokens))


@pytest.fixture
def masking(piece_text) -> Masking:
    ids = [piece_text.tokenizer.token_to_id(token) for token in ("[PAD]", "[UNK]", "[S]", "[NEWLINE]")]
    return Masking(piece_text.tokenizer.token_to_id("[MASK]"), ids, len(piece_text))


@pytest.fixture
def make_pretraining(piece_text):
    """(seed=0, **scratch_config's arguments) -> a tiny model with its heads, without dropout."""

    def make(*, seed: int = 0, **others) -> PretrainingModel:
        tiny = {"dim": 16, "n_heads": 2, "ffn_dim": 32, "n_layers": 2, "n_positions": LONGEST, "dropout": 0.0}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = build_scratch_config(vocabulary_size=len(piece_text), **(tiny | others))
            return PretrainingModel(build_backbone(config)).eval()

    return make


@pytest.fixture
def talks(tmp_path) -> str:
    """A file of conversations."""
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps({"turns": talk}) + "\n" for talk in TALKS))
    return str(path)


@pytest.fixture
def pieces(piece_tokenizer, tmp_path) -> str:
    save_tokenizer(tmp_path / "pieces", piece_tokenizer, special_tokens=ROLES)
    return str(tmp_path / "pieces")


@pytest.fixture
def make_settings(talks, pieces, tmp_path):
    """(**fields) -> the settings of a tiny run on the tiny corpus, which it is evaluated on too."""

    def make(**fields) -> PretrainingSettings:
        options = {
            "corpus": (talks,),
            "valid": talks,
            "vocabulary": pieces,
            "out": str(tmp_path / "out"),
            "tokens_per_batch": 8 * LONGEST,
            "max_steps": 6,
            "warmup_steps": 2,
            "evaluate_every": 4,
            "device": "cpu",
        }
        values = options | TINY | fields
        return PretrainingSettings(**{name: value for name, value in values.items() if value is not None})

    return make
