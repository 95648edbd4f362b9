from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from polyencoder.files import fingerprint, replacing, write_text


def test_the_new_file_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "made" / "on the way" / "file.txt"
    for content in ("old", "new"):
        write_text(path, content)
        assert path.read_text(encoding="utf-8") == content
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", ["old", None])
def test_an_error_leaves_what_was_there(tmp_path, error, old):
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == ([] if old is None else ["file.txt"])
    assert old is None or path.read_text() == old


def test_nothing_is_seen_before_the_end(tmp_path):
    path = tmp_path / "file.txt"
    with replacing(path) as temporary:
        assert temporary.parent == path.parent  # on the same disk, or the renaming is no renaming
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"


def test_files_have_the_ordinary_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    write_text(tmp_path / "ours", "")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")]
    assert modes[0] == modes[1]


def test_the_fingerprint_counts_where_a_part_ends():
    parts = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], []]
    assert len({fingerprint(p) for p in parts}) == len(parts)


def test_the_fingerprint_is_of_the_bytes():
    numbers = np.arange(4, dtype=np.float32)
    assert fingerprint([numbers.data]) == fingerprint([numbers.tobytes()])
    assert fingerprint(["ä"]) == fingerprint(["ä".encode()])
    assert fingerprint(["a"]) == "fc9c942180a48b1bfa36938828a429dc"  # a digest on disk stays valid
