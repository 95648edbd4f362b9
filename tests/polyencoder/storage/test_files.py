from __future__ import annotations

import errno
import os
import resource
import stat

import numpy as np
import pytest

from polyencoder.errors import CheckpointError, ConfigError
from polyencoder.storage.files import (
    atomic_write,
    check_writable,
    check_writable_folder,
    discard_leftovers,
    move_files,
    parse_versioned,
    write_array,
    write_text,
)


def test_the_new_file_takes_the_old_ones_place(tmp_path):
    path = tmp_path / "made" / "on the way" / "file.txt"
    for content in ("old", "new"):
        write_text(path, content)
        assert path.read_text(encoding="utf-8") == content
    assert os.listdir(path.parent) == ["file.txt"]


def test_an_array_that_has_no_room(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):  # numpy itself does not say why it wrote no more
            write_array(tmp_path / "array.npy", np.zeros((100, 100), np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
    write_array(tmp_path / "array.npy", expected := np.arange(12, dtype=np.float32).reshape(4, 3))
    assert (np.load(tmp_path / "array.npy") == expected).all()


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("old", ["old", None])
def test_an_error_leaves_what_was_there(tmp_path, error, old):
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half of the ne")
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == ([] if old is None else ["file.txt"])
    assert old is None or path.read_text() == old


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path):
    def write() -> None:
        with atomic_write(tmp_path / "run", overwrite=False) as temporary:
            temporary.write_text("mine")
            (tmp_path / "run").write_text("theirs")

    with pytest.raises(FileExistsError, match="another process has written it"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run").read_text() == "theirs"
    write_text(tmp_path / "other", "mine", overwrite=False)
    assert (tmp_path / "other").read_text() == "mine"


@pytest.mark.parametrize("call", ["fsync", "link", "replace", "unlink"])
def test_a_kill_leaves_a_new_file_whole_or_not_there(tmp_path, killed_after, call):
    path = tmp_path / "run"

    def write() -> None:
        setattr(os, call, lambda *paths: os._exit(0))
        write_text(path, "mine", overwrite=False)

    killed_after(9, write)
    assert not path.exists() or path.read_text() == "mine"
    discard_leftovers(path)
    assert {*os.listdir(tmp_path)} <= {"run"}


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def no_link(*paths: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    write_text(tmp_path / "run", "mine", overwrite=False)
    with pytest.raises(FileExistsError, match="another process has written it"):
        write_text(tmp_path / "run", "theirs", overwrite=False)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("run", "mine")]


def test_a_broken_link_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(ConfigError, match="link: is a link to gone, which does not exist; give the name of a folder"):
        check_writable_folder(tmp_path / "link", argument="out")
    (tmp_path / "gone").mkdir()
    check_writable_folder(tmp_path / "link", argument="out")


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_that_is_read_is_not_replaced(tmp_path, overwrite):
    for name in ("one", "two"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("one")
    read = [None, "-", tmp_path / "none", tmp_path / "two", tmp_path / "one"]
    for name in ("one", "link"):
        with pytest.raises(ConfigError, match=f"{name}: is read, and would be replaced; give another name"):
            check_writable(tmp_path / name, argument="out", overwrite=overwrite, read=read)
    check_writable(tmp_path / "none", argument="out", overwrite=overwrite, read=read)
    check_writable(tmp_path / "one", argument="out", overwrite=True, read=read[:-1])


def test_files_have_the_ordinary_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    write_text(tmp_path / "ours", "")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ordinary", "ours")]
    assert modes[0] == modes[1]


@pytest.mark.parametrize("mode", [0o600, 0o444, 0o755])
def test_a_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_no_other_thread_loses_its_umask(tmp_path, monkeypatch):
    """os.umask is of the process: while it is changed, files of other threads are everybody's."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was set"))
    write_text(tmp_path / "file", "")


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_one(tmp_path, exists):
    (tmp_path / "place").mkdir()
    if exists:
        (tmp_path / "place" / "file").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "place" / "file")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "place" / "file").read_text() == "new"


@pytest.mark.parametrize("name", ["n" * 255, "ä" * 127, "n" * 241])
def test_a_name_that_can_be_checked_can_be_written(tmp_path, name):
    check_writable(tmp_path / name, argument="out", overwrite=False)
    write_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    replace, fsync = os.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (done.append("renamed"), replace(*paths)))
    write_text(tmp_path / "file", "text")
    assert done[0].endswith(".part")
    assert done[1:] == ["renamed", str(tmp_path)]


def test_what_a_kill_left_goes_with_a_later_file(tmp_path):
    path = tmp_path / "file.txt"
    others = [tmp_path / ".file.txt.abcdef01.notpart", tmp_path / ".other.txt.abcdef01.part"]
    for file in (old := tmp_path / ".file.txt.abcdef01.part", fresh := tmp_path / ".file.txt.abcdef02.part", *others):
        file.touch()
    for file in (old, *others):
        os.utime(file, (0, 0))
    write_text(path, "new")
    assert sorted(tmp_path.iterdir()) == sorted([path, fresh, *others])  # somebody may be writing the fresh one
    discard_leftovers(path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def files_below(folder) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_files_move_to_the_same_places_below_a_folder_that_holds_others(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    for path in (source / "last", source / "a", source / "deep" / "last", target / "other", target / "a"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.relative_to(tmp_path).as_posix())
    move_files(source, target, last="last")
    assert files_below(target) == {name: f"source/{name}" for name in ("last", "a", "deep/last")} | {
        "other": "target/other"
    }


def test_the_file_that_says_it_is_complete_moves_last(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    for name in ("a", "z"):
        (source / name).write_text(name)
    (target / "z").mkdir(parents=True)  # in the way
    with pytest.raises(IsADirectoryError):
        move_files(source, target, last="a")
    assert files_below(target) == {}


def make(values):
    if values["n"] < 0:
        raise ConfigError("n is -1; it must be at least 0\nand more")
    return values


@pytest.mark.parametrize("text", ['{"format_version": 2, "n": 1}', b'{"format_version": 2, "n": 1}'])
def test_what_is_made_has_no_version(text):
    assert parse_versioned(text, make, version=2, origin="it", remedy="make it again") == {"n": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff", r"damaged \(UnicodeDecodeError: .*\); make it again$"),
        ("[" * 100_000, r"damaged \(RecursionError: .*\); make it again$"),
        ("[]", r"damaged \(TypeError: .*\); make it again$"),
        ("3", r"damaged \(AttributeError: .*\); make it again$"),
        ('{"n": 1}', r"damaged \(KeyError: 'format_version'\); make it again$"),
        ('{"format_version": 2, "n": -1}', r"damaged \(ConfigError: n is -1; it must be at least 0\); make it again$"),
        (
            '{"format_version": 3, "n": -1}',
            "format version 3, but this version of polyencoder reads 2; install the version that wrote it, or make it "
            "again$",
        ),
    ],
)
def test_another_text_is_an_error_that_says_what_to_do(text, message):
    with pytest.raises(CheckpointError, match=f"^it: {message}"):
        parse_versioned(text, make, version=2, origin="it", remedy="make it again")
