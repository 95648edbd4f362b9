"""Writes a pre-trained encoder as a backbone's folder, which `AutoModel` and `AutoTokenizer` read too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor

from polyencoder.checkpoint import check_shapes, publishing_folder
from polyencoder.errors import CheckpointError, get_first_line
from polyencoder.modeling.finite import check_finite
from polyencoder.modeling.layout import build_tokenizer_config
from polyencoder.storage.files import build_exists_error, reporting_write_errors
from polyencoder.storage.names import MODULE_CONFIG, MODULE_WEIGHTS, TOKENIZER, TOKENIZER_CONFIG
from polyencoder.storage.publish import publishing

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def save_backbone(
    folder: str | os.PathLike[str],
    *,
    config: PretrainedConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    special_tokens: Mapping[str, str],
    origin: str,
) -> None:
    """Writes an encoder's files and its tokenizer's, all of them or none; an encoder in the folder is replaced.

    weights: by the Hugging Face model's names, without a pooler. special_tokens: by role, such as `cls_token`.
    CheckpointError if `folder` is a file, or the weights are not those of such a model.
    """
    config.architectures = [_check_fit(config, weights, origin=origin)]
    config.dtype = torch.float32
    with publishing_folder(folder) as staging:
        tensors = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()
        }
        safetensors.torch.save_file(tensors, staging / MODULE_WEIGHTS, metadata={"format": "pt"})
        segments = (getattr(config, "type_vocab_size", 0) or 0) > 1
        _write_tokenizer(staging, tokenizer, special_tokens=special_tokens, segments=segments)
        (staging / MODULE_CONFIG).write_text(config.to_json_string(), encoding="utf-8")


def save_tokenizer(
    folder: str | os.PathLike[str],
    tokenizer: Tokenizer,
    *,
    special_tokens: Mapping[str, str],
    overwrite: bool = True,
) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which `AutoTokenizer` reads; both or none.

    `special_tokens`: by role, such as `cls_token`. `overwrite`: replace a tokenizer that is there.
    """

    def check() -> None:
        if not overwrite and (path := Path(folder) / TOKENIZER).exists():
            raise build_exists_error(path)

    with reporting_write_errors(folder), publishing(folder, check=check) as staging:
        _write_tokenizer(staging, tokenizer, special_tokens=special_tokens, segments=True)


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, *, special_tokens: Mapping[str, str], segments: bool) -> None:
    values = build_tokenizer_config(segments=segments, **special_tokens)
    (folder / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    (folder / TOKENIZER_CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _check_fit(config: PretrainedConfig, weights: Mapping[str, Tensor], *, origin: str) -> str:
    """Returns the model's class; checks that it has exactly these tensors, except for a pooler."""
    from transformers import AutoModel

    try:
        with torch.device("meta"):  # shapes alone: no memory, no random numbers
            model = AutoModel.from_config(config, trust_remote_code=False)
    except ValueError as error:
        raise CheckpointError(f"{origin}: no model can be built from its options ({get_first_line(error)})") from None
    expected = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("pooler.")}
    check_shapes(expected, weights, origin=origin)
    check_finite(weights.items(), origin=origin)
    return type(model).__name__
