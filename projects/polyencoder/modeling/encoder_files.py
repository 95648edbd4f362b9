"""Reads the files of an encoder, in its folder or on the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyencoder.errors import ConfigError, PolyencoderError, get_first_line
from polyencoder.hub.resolve import exists, explain_invalid_hub_id, explain_unreachable_hub, was_downloaded
from polyencoder.modeling.encoder_config import get_max_length
from polyencoder.storage.foreign import describe_file
from polyencoder.storage.publish import finish_publication


def find_file(name: str | os.PathLike[str], file: str) -> str | None:
    """The path of a file of a folder or hub repository; None if missing or unreachable."""
    from transformers.utils.hub import cached_file

    return cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def read_json(name: str | os.PathLike[str], file: str, kind: type) -> Any:
    """Reads a JSON file of a folder or hub repository; None if missing or unreachable."""
    path = find_file(name, file)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as opened:
            value = json.load(opened)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: {file} cannot be read ({get_first_line(error)})") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{name}: {file} holds a {type(value).__name__}, not a {kind.__name__}")
    return value


ADAPTERS = "adapter_config.json"
"""PEFT's file beside the weights of adapters: their encoder, and how they change it."""

LONGEST = 512
"""Tokens of an input where neither the tokenizer nor the encoder has a maximum."""


def find_longest_input(name: str | os.PathLike[str], backbone: Mapping[str, Any], *, folder: str = "") -> int:
    """The maximum tokens of an encoder's text, or of a reranker's pair; `folder`: of the tokenizer, inside `name`."""
    tokenizer = read_json(name, f"{folder}/tokenizer_config.json".lstrip("/"), dict) or {}
    limits = (get_max_length({**backbone}), tokenizer.get("model_max_length"))
    return int(min((limit for limit in limits if isinstance(limit, int | float) and limit > 0), default=LONGEST))


@contextmanager
def explaining_load(name: str | os.PathLike[str]) -> Iterator[dict[str, bool]]:
    """Raises transformers' errors as a one-line ConfigError; yields the arguments for offline use."""
    offline = None
    if exists(name):
        finish_publication(name)
    else:
        if reason := explain_invalid_hub_id(name):
            raise ConfigError(
                f"backbone {os.fspath(name):.300}: {reason}; give the folder of an encoder", argument="backbone"
            )
        offline = explain_unreachable_hub()
    problem = f"backbone {name}: neither a folder of a Hugging Face encoder nor a hub id that can be reached"
    if offline and not was_downloaded(name):
        raise ConfigError(f"{problem} (not downloaded before, and {offline})", argument="backbone")
    from transformers.utils import logging as hf_logging

    bars = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # "Loading weights", over in a moment
    try:
        yield {"local_files_only": offline is not None}
    except PolyencoderError:
        raise
    except Exception as error:  # transformers passes on the errors of its file readers, even plain Exception
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"backbone {name}: it needs code that comes with it, which is never run; use an encoder that "
                "transformers has itself",
                argument="backbone",
            ) from error
        description = None
        if not any((Path(name) / file).is_file() for file in ("config.json", "modules.json", ADAPTERS)):
            description = describe_file(name)
        reason = f"it looks like {description}" if description else get_first_line(error)
        raise ConfigError(f"{problem} ({reason})", argument="backbone") from error
    finally:
        if bars:
            hf_logging.enable_progress_bar()
