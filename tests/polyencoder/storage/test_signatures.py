from __future__ import annotations

import hashlib
import hmac
import secrets
from unittest.mock import Mock

import pytest

from polyencoder.errors import ConfigError
from polyencoder.storage.signatures import is_signed, sign_file


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYENCODER_KEY", str(tmp_path / "keys" / "key"))
    return tmp_path / "keys" / "key"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 5_000)  # longer than what is read at once
    return path


def test_a_signature_is_the_hmac_of_the_whole_file(key, file):
    signature = sign_file(file)
    assert signature == hmac.new(key.read_bytes(), file.read_bytes(), hashlib.sha256).hexdigest()
    assert is_signed(file, signature)
    assert key.stat().st_mode & 0o777 == 0o600
    assert sign_file(file) == signature  # the key stays


def test_a_changed_file_is_not_signed(key, file):
    signature, content = sign_file(file), file.read_bytes()
    for position in (0, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        assert not is_signed(file, signature)
    file.write_bytes(content)
    assert is_signed(file, signature)


def test_another_installation_has_not_signed_it(key, file, monkeypatch):
    signature = sign_file(file)
    monkeypatch.setenv("POLYENCODER_KEY", str(key.with_name("other")))
    assert not is_signed(file, signature)
    assert not key.with_name("other").exists()  # made by those who sign
    sign_file(file)
    assert not is_signed(file, signature)


def test_the_key_is_in_the_users_folder(tmp_path, file, monkeypatch):
    monkeypatch.delenv("POLYENCODER_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    sign_file(file)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    sign_file(file)
    for folder in ("config", ".config"):
        assert (tmp_path / folder / "polyencoder" / "key").stat().st_size == 32


def test_a_key_appears_whole(key, file, monkeypatch):
    """Otherwise a process that signs meanwhile reads the beginning of a key, and a kill leaves it."""
    first, random = b"k" * 32, secrets.token_bytes

    def interrupt(count):
        if count == 32:
            raise KeyboardInterrupt
        return random(count)

    def write_in_another_process(count):
        key.write_bytes(first)
        return random(count)

    monkeypatch.setattr("secrets.token_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sign_file(file)
    assert not list(key.parent.iterdir())
    monkeypatch.setattr("secrets.token_bytes", write_in_another_process)
    assert sign_file(file) == hmac.new(first, file.read_bytes(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize("kind", ["short", "folder"])
def test_a_key_that_is_none(key, file, kind):
    key.parent.mkdir()
    if kind == "short":
        key.write_bytes(b"abc")
    else:
        key.mkdir()
    for call in (sign_file, lambda path: is_signed(path, "")):
        with pytest.raises(ConfigError, match=str(key)):
            call(file)


def test_a_user_without_a_home(file, monkeypatch):
    for name in ("POLYENCODER_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pathlib.Path.home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    for call in (sign_file, lambda path: is_signed(path, "")):
        with pytest.raises(ConfigError, match="POLYENCODER_KEY"):
            call(file)


def test_a_key_that_cannot_be_made(file, monkeypatch):
    monkeypatch.setenv("POLYENCODER_KEY", "/proc/key")
    with pytest.raises(ConfigError, match="/proc/key: .*POLYENCODER_KEY"):
        sign_file(file)
