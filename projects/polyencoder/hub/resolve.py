"""Looks up names on the Hugging Face hub, and downloads from it.

huggingface_hub and transformers try again and again for a minute where there is no network, and take any text for the
name of a repository.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import constants, get_session, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from polyencoder.errors import CheckpointError, get_first_line

SECONDS = 5.0
"""The timeout for a server's answer, in seconds."""
_CACHE_SECONDS = 10.0  # seconds an answer is cached

_FILE_SUFFIX = re.compile(r"\.(jsonl?|safetensors|bin|pth?|ckpt|onnx|opt|dict|checkpoint|txt|[ct]sv|parquet)$", re.I)
_HUB_ID = re.compile(r"(?=.{1,96}$)([\w.-]+/)?[\w.-]+", re.ASCII)

_answers: dict[str, tuple[float, str | None]] = {}


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a name can only be a path, existing or not, and not a hub id."""
    text = os.fspath(name)
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith("/") or "\\" in text
    return isinstance(name, os.PathLike) or looks_like_path or bool(_FILE_SUFFIX.search(text)) or exists(text)


def exists(name: str | os.PathLike[str]) -> bool:
    """Whether a file or folder of this name exists; False for invalid file names."""
    try:
        return os.path.exists(name)
    except (OSError, ValueError):
        return False


def explain_invalid_hub_id(name: str | os.PathLike[str]) -> str | None:
    """Why a name cannot be a hub id; None if it can."""
    text = os.fspath(name)
    if is_path(name):
        hint = f"; did you mean {home}?" if text.startswith("~") and exists(home := os.path.expanduser(text)) else ""
        return f"no such folder or file{hint}"
    if not _HUB_ID.fullmatch(text):
        return "no such folder or file, and no model on the hub can have this name, which is NAME or OWNER/NAME there"
    return None


def was_downloaded(name: str | os.PathLike[str]) -> bool:
    """Whether a hub model is in the download cache, by a file that each kind of encoder has."""
    files = ("config.json", "modules.json", "adapter_config.json")
    return any(isinstance(try_to_load_from_cache(os.fspath(name), file), str) for file in files)


def explain_unreachable_hub() -> str | None:
    """Why the hub cannot be reached within `SECONDS`; None if it can."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    url = constants.ENDPOINT
    reason = explain_unreachable(url, lambda: get_session().head(url, timeout=SECONDS))
    return reason and f"{url} cannot be reached: {reason}"


def explain_unreachable(url: str, ask: Callable[[], object]) -> str | None:
    """Why a server does not answer within `SECONDS`; None if it does. Answers are cached for a few seconds.

    Asks in a separate thread, as DNS look-ups have no time-out.
    """
    now = time.monotonic()
    if url in _answers and now - _answers[url][0] < _CACHE_SECONDS:
        return _answers[url][1]
    reasons: list[str | None] = []

    def run() -> None:
        try:
            ask()
            reasons.append(None)
        except Exception as error:  # of huggingface_hub's HTTP library, which depends on its version
            reasons.append(get_first_line(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    reason = reasons[0] if reasons else f"no answer in {SECONDS:.0f} seconds"
    _answers[url] = time.monotonic(), reason
    return reason


def download_files(name: str | os.PathLike[str], patterns: list[str]) -> Path:
    """Downloads these files of a hub repository, unless cached; returns their folder.

    Raises:
        CheckpointError: there is no such repository, or it cannot be reached and was not fetched before.
    """
    text = os.fspath(name)
    if problem := explain_invalid_hub_id(name):
        raise CheckpointError(f"{text:.300}: {problem}")
    offline = explain_unreachable_hub()
    try:
        return Path(snapshot_download(text, allow_patterns=patterns, local_files_only=offline is not None))
    except (OSError, HFValidationError) as error:
        raise CheckpointError(
            f"{text}: no such folder or file, and "
            + (
                f"not downloaded before ({offline})"
                if offline
                else f"not a model on the hub that can be reached ({get_first_line(error)})"
            )
        ) from None
