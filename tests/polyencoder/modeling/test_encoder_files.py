from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.modeling.encoder_files import find_file, read_json


def test_files_of_a_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "config.json"
    path.write_text('{"é": 1}', encoding="utf-8")
    assert find_file(tmp_path, "inner/config.json") == str(path)
    assert read_json(tmp_path, "inner/config.json", dict) == {"é": 1}


@pytest.mark.parametrize("name", ["nobody/has-this", "."])
def test_what_is_not_there(name):
    """In a folder, or on a hub that no test reaches."""
    assert find_file(name, "no.json") is None
    assert read_json(name, "no.json", dict) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[{", "cannot be read"), (b"\xff", "cannot be read"), (b"[]", "holds a list, not a dict")],
)
def test_what_is_no_such_json(tmp_path, content, message):
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(ConfigError, match=f"{tmp_path}: one.json {message}"):
        read_json(tmp_path, "one.json", dict)
