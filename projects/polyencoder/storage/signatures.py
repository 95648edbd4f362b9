"""Signatures of files that only this installation may have written, as the library that reads them trusts them blindly.

A signature is the HMAC-SHA256 of a file's contents with a secret key of the user: `polyencoder/key` in the folder
`XDG_CONFIG_HOME` (`~/.config`), or the file that the environment variable POLYENCODER_KEY names. Machines that read
each other's files share the key.
"""

from __future__ import annotations

import hmac
import os
import secrets
from functools import partial
from pathlib import Path

from polyencoder.errors import ConfigError
from polyencoder.storage.digests import compute_file_digest
from polyencoder.storage.files import atomic_write

_BYTES = 32


def sign_file(path: str | os.PathLike[str]) -> str:
    """The signature of a file, by a key that is made if missing. ConfigError for a bad key, OSError for the file."""
    return _compute_signature(path, make_key())


def is_signed(path: str | os.PathLike[str], signature: str) -> bool:
    """Whether the file has this signature. Raises ConfigError if the key cannot be read, OSError if the file cannot."""
    key = _read_key()
    return key is not None and hmac.compare_digest(_compute_signature(path, key), signature)


def _compute_signature(path: str | os.PathLike[str], key: bytes) -> str:
    return compute_file_digest(path, new=partial(hmac.new, key, digestmod="sha256"))


def _get_key_file() -> Path:
    if path := os.environ.get("POLYENCODER_KEY"):
        return Path(path)
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "polyencoder" / "key"
    except RuntimeError as error:  # a user without a home
        raise ConfigError(
            f"the key that signs files has no folder ({error}); name a file in the environment variable POLYENCODER_KEY"
        ) from None


def _read_key() -> bytes | None:
    path = _get_key_file()
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: the key that signs files cannot be read ({error.strerror})") from None
    if len(key) != _BYTES:
        raise ConfigError(f"{path}: has {len(key)} bytes, and is no key that signs files: remove it")
    return key


def make_key() -> bytes:
    """The key, which is made if missing. ConfigError if it cannot be."""
    if (key := _read_key()) is not None:
        return key
    path = _get_key_file()
    try:
        with atomic_write(path, overwrite=False, new_mode=0o600) as file:
            file.write_bytes(key := secrets.token_bytes(_BYTES))
    except FileExistsError:  # another process made it meanwhile
        key = _read_key() or b""
    except OSError as error:
        raise ConfigError(
            f"{path}: the key that signs files cannot be made ({error.strerror}); name another file in the environment "
            "variable POLYENCODER_KEY"
        ) from None
    return key
