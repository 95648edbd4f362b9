from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.modeling.encoder_files import file_of, json_of


def test_files_of_a_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    path = tmp_path / "inner" / "config.json"
    path.write_text('{"é": 1}', encoding="utf-8")
    assert file_of(tmp_path, "inner/config.json") == str(path)
    assert json_of(tmp_path, "inner/config.json", dict) == {"é": 1}


@pytest.mark.parametrize("name", ["nobody/has-this", "."])
def test_what_is_not_there(name):
    """In a folder, or on a hub that no test reaches."""
    assert file_of(name, "no.json") is None
    assert json_of(name, "no.json", dict) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[{", "cannot be read"), (b"\xff", "cannot be read"), (b"[]", "holds a list, not a dict")],
)
def test_what_is_no_such_json(tmp_path, content, message):
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(ConfigError, match=f"{tmp_path}: one.json {message}"):
        json_of(tmp_path, "one.json", dict)
