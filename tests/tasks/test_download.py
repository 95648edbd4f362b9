"""Official files: found where they are, else downloaded whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from parlai.core import build_data
from parlai.core.build_data import DownloadableFile
from parlai.core.opt import Opt
from parlai.tasks.dstc7 import build as parlais_dstc7
from parlai.tasks.selection import wiki
from parlai.tasks.selection.download import find

from polyencoder.errors import InputError

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def opt(tmp_path):
    return Opt({"datapath": str(tmp_path)})


def archive(**files: str) -> bytes:
    """A .tgz with these files, `name__json="..."` for `name.json`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return stream.getvalue()


@pytest.fixture
def serve(monkeypatch):
    """(data, truth=None) -> the web gives `data` for ParlAI's DSTC7 archive, whose checksum is that of `truth`.

    Everything of ParlAI but the connection is its own: the checksum, the unpacking, the mark that it is done.
    """

    def serve(data: bytes, *, truth: bytes | None = None) -> list[str]:
        requests: list[str] = []

        def download(url, path, name, **_):
            requests.append(url)
            with open(f"{path}/{name}", "wb") as file:
                file.write(data)

        checksum = hashlib.sha256(data if truth is None else truth).hexdigest()
        resource = DownloadableFile("http://parl.ai/dstc7_v2.tgz", "dstc7_v2.tgz", checksum)
        monkeypatch.setattr(build_data, "download", download)
        monkeypatch.setattr(parlais_dstc7, "RESOURCES", [resource])
        return requests

    return serve


def look_for(opt, name="dev.json"):
    return find(opt, "dstc7", [name], build=parlais_dstc7.build)


def everything_in(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_is_there_is_taken(opt, tmp_path):
    for name in ("b.txt.gz", "a.txt.gz", "a.txt"):
        (tmp_path / "task").mkdir(exist_ok=True)
        (tmp_path / "task" / name).touch()
    build = pytest.fail
    assert find(opt, "task", ["a.txt", "b.txt"], build=build).name == "a.txt"
    assert find(opt, "task", ["b.txt", "a.txt"], build=build).name == "b.txt.gz"


def test_download(opt, tmp_path, serve):
    requests = serve(archive(dev__json="[]", train__json="[1]"))
    assert look_for(opt).read_text() == "[]"
    assert requests == ["http://parl.ai/dstc7_v2.tgz"]
    assert everything_in(tmp_path) == ["dstc7", "dstc7/.built", "dstc7/dev.json", "dstc7/train.json"]
    assert build_data.built(str(tmp_path / "dstc7"), "2.0")  # for ParlAI's own teachers too
    look_for(opt)
    assert len(requests) == 1


def test_download_leaves_other_files_alone(opt, tmp_path, serve):
    (tmp_path / "dstc7").mkdir()
    (tmp_path / "dstc7" / "mine.json").write_text("mine")
    build_data.mark_done(str(tmp_path / "dstc7"), "1.0")  # ParlAI would empty the folder
    serve(archive(dev__json="[]"))
    look_for(opt)
    assert everything_in(tmp_path / "dstc7") == [".built", "dev.json", "mine.json"]


def damaged(data: bytes) -> bytes:
    return data[: len(data) // 2]


def test_wrong_checksum_leaves_nothing(opt, tmp_path, serve):
    whole = archive(dev__json="[]")
    serve(damaged(whole), truth=whole)
    with pytest.raises(
        InputError, match=r"dstc7: has none of dev.json .* download failed \(Checksum for dstc7"
    ) as raised:
        look_for(opt)
    assert "\n" not in str(raised.value)
    assert "give --datapath a folder with dstc7/ in it" in str(raised.value)
    assert everything_in(tmp_path) == []
    serve(whole)  # the next start
    assert look_for(opt).read_text() == "[]"


def test_half_an_archive_leaves_nothing(opt, tmp_path, serve):
    """Though ParlAI has unpacked a part of it where it would be found."""
    serve(damaged(archive(dev__json="[]", train__json="".join(map(str, range(100_000))))))
    with pytest.raises(InputError, match="download failed"):
        look_for(opt)
    assert everything_in(tmp_path) == []


def test_no_connection_leaves_nothing(opt, tmp_path, monkeypatch):
    def download(url, path, name, **_):
        raise RuntimeError("Connection broken\ntoo many times.")

    monkeypatch.setattr(build_data, "download", download)
    with pytest.raises(InputError, match=r"download failed \(Connection broken too many times.\); give --datapath"):
        look_for(opt)
    assert everything_in(tmp_path) == []


def test_download_without_the_file(opt, serve):
    serve(archive(other__json="[]"))
    with pytest.raises(InputError, match="has none of dev.json .*, also after ParlAI's download"):
        look_for(opt)


def test_nothing_to_download(opt, tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}/task: has none of a.txt, b.txt .*; give --datapath a folder"):
        find(opt, "task", ["a.txt", "b.txt"])


def test_wiki_archives(opt, tmp_path, monkeypatch):
    """StarSpace's, for which ParlAI has no task."""

    def download(url, path, name, **_):
        split = "wikipedia_train250k__txt" if "train" in name else "wikipedia_test10k__txt"
        with open(f"{path}/{name}", "wb") as file:
            file.write(archive(**{split: "one\ttwo\n"}))

    monkeypatch.setattr(build_data, "download", download)
    file = find(opt, wiki.FOLDER, wiki.NAMES["train"], build=wiki._build)
    assert file.name == "wikipedia_train250k.txt"
    assert everything_in(tmp_path / wiki.FOLDER) == [".built", "wikipedia_test10k.txt", "wikipedia_train250k.txt"]
