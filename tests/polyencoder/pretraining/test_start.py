"""What an encoder must not have to be pre-trained further."""

from __future__ import annotations

import json
import shutil

import pytest

from polyencoder.errors import ConfigError
from polyencoder.pretraining.start import build_starting_model
from polyencoder.settings.pretrain import PretrainingSettings


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "query: "}},
            "has prompts, and is pre-trained without: .* as `backbone`, .* without config_sentence_transformers.json",
        ),
        ("modules.json", ["Transformer", "Pooling", "LSTM"], "modules.json has .*LSTM"),
    ],
)
def test_what_pre_training_would_drop_is_refused(backbone_folder, tmp_path, file, content, message):
    folder = shutil.copytree(backbone_folder("bert"), tmp_path / "encoder")
    if file == "modules.json":
        content = [{"type": f"sentence_transformers.models.{name}", "path": name} for name in content]
        (folder / "Pooling").mkdir()
        (folder / "Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        build_starting_model(PretrainingSettings(corpus=("c",), out="o", backbone=str(folder), max_steps=1))
