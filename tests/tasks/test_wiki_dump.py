"""From a Wikipedia dump to article search: WikiExtractor's files in, one article a line out."""

from __future__ import annotations

import gzip

import pytest
from parlai.tasks.selection.wiki_dump import iter_articles, main, write_splits

from polyencoder.errors import InputError

DOC = """\
<doc id="{n}" url="https://en.wikipedia.org/wiki?curid={n}" title="Town {n}">
Town {n}

Town {n} lies by the sea. It has {n} inhabitants! Who counted them? "Nobody." A  sailor did.
It was sold for 3.5 guilders, i.e. nothing.

</doc>
"""
SENTENCES = ["town {n} lies by the sea.", "it has {n} inhabitants!", "who counted them?", '"nobody."']
SENTENCES += ["a sailor did.", "it was sold for 3.5 guilders, i.e. nothing."]
STUB = '<doc id="9" url="u" title="Stub">\nStub\n\nStub is short.\n\n</doc>\n'


def sentences_of(number: int) -> list[str]:
    return [sentence.format(n=number) for sentence in SENTENCES]


@pytest.fixture
def dump(tmp_path):
    """A folder as WikiExtractor writes it: 60 articles and a few stubs in two folders, one file compressed."""
    for folder, numbers in {"AA": range(30), "AB": range(30, 60)}.items():
        text = STUB.join(DOC.format(n=n) for n in numbers)
        (tmp_path / "extracted" / folder).mkdir(parents=True)
        path = tmp_path / "extracted" / folder / ("wiki_00.gz" if folder == "AB" else "wiki_00")
        path.write_bytes(gzip.compress(text.encode()) if path.suffix else text.encode())
    return tmp_path / "extracted"


def test_articles(dump):
    assert list(iter_articles(str(dump))) == [sentences_of(n) for n in range(60)]


def test_splits(dump, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    counts = write_splits(str(dump), str(out), held_out=5)
    lines = {split: (out / f"wikipedia_{split}.txt").read_text().splitlines() for split in counts}
    assert counts == {split: len(articles) for split, articles in lines.items()}
    together = sorted(line for articles in lines.values() for line in articles)
    assert together == sorted("\t".join(sentences_of(n)) for n in range(60))
    assert 0 < counts["valid"] < 15
    assert 0 < counts["test"] < 15
    before = (out / "wikipedia_valid.txt").read_text()
    write_splits(str(dump), str(out), held_out=5)
    assert (out / "wikipedia_valid.txt").read_text() == before
    write_splits(str(dump), str(out), held_out=5, seed=1)
    assert (out / "wikipedia_valid.txt").read_text() != before


def test_task_reads_what_was_written(dump, tmp_path, make_teacher, messages):
    folder = tmp_path / "wiki_article_search"
    assert main([str(dump), str(folder), "--held-out", "5"]) == 0
    teacher = make_teacher("selection:wiki", datatype="train:evalmode", datapath=str(tmp_path), wiki_candidates=4)
    seen = messages(teacher)
    assert len(seen) == len((folder / "wikipedia_train.txt").read_text().splitlines())
    assert all(len(set(message["label_candidates"])) == 5 for message in seen)


BAD = [
    ("</doc>\n", "line 1: </doc> without <doc>; is this WikiExtractor's output?"),
    ('<doc id="1">\nA\n\nOne. Two.\n', "line 1: this <doc> has no </doc>; the file is cut short"),
    ('<doc id="1">\nA\n<doc id="2">\nB\n</doc>\n', "line 1: this <doc> has no </doc>"),
    ("caf\xe9\n".encode("latin-1"), "line 1: is not utf-8 text"),
]


@pytest.mark.parametrize(("content", "problem"), BAD)
def test_not_from_wikiextractor(tmp_path, write, content, problem):
    path = write(tmp_path / "extracted/wiki_00", content)
    out = tmp_path / "out"
    with pytest.raises(InputError, match=f"{path}, {problem}"):
        write_splits(str(path.parent), str(out))
    assert not list(out.glob("*"))


def test_nothing_to_read(tmp_path, write, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: has no files; give the folder that WikiExtractor wrote"):
        list(iter_articles(str(tmp_path / "empty")))
    write(tmp_path / "stubs/wiki_00", STUB)
    assert main([str(tmp_path / "stubs"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'stubs'}: has no article of two sentences or more\n"


def test_a_failure_leaves_the_old_files(dump, tmp_path):
    write_splits(str(dump), str(tmp_path), held_out=5)
    before = (tmp_path / "wikipedia_train.txt").read_text()
    (dump / "AC").mkdir()
    (dump / "AC" / "wiki_00").write_text("</doc>\n")
    with pytest.raises(InputError, match="without <doc>"):
        write_splits(str(dump), str(tmp_path), held_out=5)
    assert (tmp_path / "wikipedia_train.txt").read_text() == before
    assert len(list(tmp_path.glob("*wikipedia*"))) == 3
