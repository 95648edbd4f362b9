"""Dumps, made ones, joined: against a plain join in memory, with counted reasons, and as a corpus."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter

import pytest

from polyencoder.cli.main import main
from polyencoder.data.readers import BadExamples
from polyencoder.errors import ConfigError, InputError
from polyencoder.pretraining.documents import read_documents
from polyencoder.pretraining.reddit import REASONS, Filters, SkippedComment, ThreadIndex
from tests.commands import run_command


def base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return (base36(number // 36) if number >= 36 else "") + digits[number % 36]


def made_dump(threads: int = 20, comments: int = 15):
    """Submissions, and comments that reply to any text of their thread before them; some are deleted."""
    rng = random.Random(0)
    submissions, rest = [], []
    for thread in range(1_000, 1_000 + threads):
        name = base36(thread)
        submissions.append({"id": name, "title": f"what of thread {name} ?", "author": "someone"})
        ids = [f"t3_{name}"]
        for number in range(comments):
            comment_id = base36(thread * 100 + number)
            body = "[deleted]" if rng.random() < 0.15 else f"comment {comment_id} of thread {name} &amp; more"
            parent = rng.choice(ids)
            rest.append({"id": comment_id, "link_id": f"t3_{name}", "parent_id": parent, "body": body, "author": "me"})
            ids.append(f"t1_{comment_id}")
    rng.shuffle(rest)
    return submissions, rest


@pytest.fixture
def dumps(tmp_path):
    """Files of submissions and comments, the latter in two, one compressed; and their records."""
    submissions, comments = made_dump()
    half = len(comments) // 2
    files = {"RS_2019-01": submissions, "RC_2019-01": comments[:half], "RC_2019-02.gz": comments[half:]}
    for name, records in files.items():
        data = "".join(json.dumps(record) + "\n" for record in records).encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return [str(tmp_path / name) for name in files], submissions, comments


def expected_replies(submissions, comments, *, history: int):
    """The same by looking up parents in a dictionary."""
    texts = {f"t3_{submission['id']}": (submission["title"], None) for submission in submissions}
    texts |= {
        f"t1_{comment['id']}": (comment["body"].replace("&amp;", "&"), comment["parent_id"])
        for comment in comments
        if comment["body"] != "[deleted]"
    }
    for text, parent in texts.values():
        path = []
        while parent in texts and len(path) < history:
            path.insert(0, texts[parent][0])
            parent = texts[parent][1]
        if path:
            yield path, text


@pytest.mark.parametrize("history", [1, 3, 10])
def test_comments_are_joined_to_those_that_they_reply_to(dumps, tmp_path, history):
    files, submissions, comments = dumps
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        assert list(index.read(files))[-1] == len(submissions) + len(comments)
        pairs = [(reply.context, reply.response) for reply in index.iter_replies(history=history)]
        deleted = sum(comment["body"] == "[deleted]" for comment in comments)
        assert index.left_out == Counter({"deleted or removed": deleted})
        assert index.num_texts == len(submissions) + len(comments) - deleted
    expected = list(expected_replies(submissions, comments, history=history))
    assert sorted(pairs) == sorted(expected)
    assert len(pairs) > 150
    assert not (tmp_path / "index").exists()


def test_the_command_writes_a_corpus_and_says_what_it_left_out(dumps, tmp_path):
    files, submissions, comments = dumps
    out = tmp_path / "pairs.jsonl.gz"
    result = run_command("prepare-reddit", *files, "--out", out)
    assert result.exit_code == 0, result.output
    pairs = [(list(document.units[:-1]), document.units[-1]) for document in read_documents(str(out))]
    assert sorted(pairs) == sorted(expected_replies(submissions, comments, history=10))
    deleted = sum(comment["body"] == "[deleted]" for comment in comments)
    assert f"deleted or removed   {deleted}\n" in result.output
    assert f"{out}: {len(pairs):,} pairs" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"RS_2019-01", "RC_2019-01", "RC_2019-02.gz", "pairs.jsonl.gz"}


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl.zst", "pairs"])
def test_a_name_that_would_not_be_read_as_json_lines_is_refused(dumps, tmp_path, name):
    with pytest.raises(ConfigError, match=r"JSON lines are written; give the file the ending \.jsonl"):
        run_command("prepare-reddit", *dumps[0], "--out", tmp_path / name)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "a"}', "is neither a comment"),
        ('{"id": "a", "body": "b", "link_id": "t5_x"}', "'link_id' is 't5_x'; it must be t3_"),
        ('{"id": "a!", "body": "b", "link_id": "t3_x", "parent_id": "t3_x"}', "'id' is 'a!'"),
        ('{"id": "a", "body": "b", "link_id": "t3_x", "parent_id": null}', "'parent_id' is None"),
        *(
            (
                json.dumps({"id": id_, "body": "b", "link_id": "t3_x", "parent_id": "t3_x"}),
                re.escape(f"'id' is {id_!r}"),
            )
            for id_ in ("-1", "1_0", "+1", " 1", "\u0661", "", "z" * 14, "1y2p0ij32e8e8")
        ),
        ('{"id": "a", "body": "b", "link_id": "t3_-1", "parent_id": "t3_x"}', "'link_id' is 't3_-1'"),
        ('{"id": "a", "body": "b", "link_id": "t3_x", "parent_id": "t1_-1"}', "'parent_id' is 't1_-1'"),
        ('{"id": "a", "body": "b", "link_id": "t3_x", "parent_id": -1}', "'parent_id' is -1"),
        ('{"id": "a", "body": "b", "link_id": "t3_x", "parent_id": 9223372036854775808}', "'parent_id' is 92"),
        ('{"id": "a", "body": "b", "link_id": "t3_x", "parent_id": "t1_a"}', "is its own parent"),
        ("not json", "not JSON"),
    ],
)
def test_a_bad_line_is_an_error_or_counted(dumps, tmp_path, line, problem):
    files, *_ = dumps
    with open(files[1], "a") as file:
        file.write(line + "\n")
    with (
        ThreadIndex(tmp_path / "index", Filters()) as index,
        pytest.raises(InputError, match=f"RC_2019-01, line .*{problem}"),
    ):
        list(index.read(files))
    bad = BadExamples(skip=True)
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        list(index.read(files, bad=bad))
    assert bad.count == 1


def test_the_largest_number_that_a_row_holds_is_an_id(tmp_path):
    comment = {"id": "1y2p0ij32e8e7", "body": "a fine comment", "link_id": "t3_x", "parent_id": "t3_x"}
    (tmp_path / "RC").write_text(json.dumps(comment) + "\n")
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        list(index.read([str(tmp_path / "RC")]))
        assert list(index.iter_replies(history=1)) == []
        assert index.num_texts == 1


def test_a_comment_of_two_dumps_counts_once(dumps, tmp_path):
    files, _, comments = dumps
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        list(index.read([*files, *files]))
        list(index.iter_replies(history=1))
        num_texts = index.num_texts
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        list(index.read(files))
        list(index.iter_replies(history=1))
        assert num_texts == index.num_texts > len(comments) / 2


def test_no_text_stands_twice_in_a_path_where_parents_go_in_a_circle(tmp_path):
    circle = {"a": "c", "b": "a", "c": "b"}
    records = [
        {"id": id_, "body": f"the comment {id_}", "link_id": "t3_x", "parent_id": f"t1_{parent}"}
        for id_, parent in circle.items()
    ]
    (tmp_path / "RC").write_text("".join(json.dumps(record) + "\n" for record in records))
    with ThreadIndex(tmp_path / "index", Filters()) as index:
        list(index.read([str(tmp_path / "RC")]))
        contexts = {reply.response: reply.context for reply in index.iter_replies(history=10)}
    assert contexts["the comment a"] == ["the comment b", "the comment c"]


def test_an_error_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    dump, out = tmp_path / "RC", tmp_path / "out.jsonl"
    dump.write_text('{"id": "a", "body": "all alone here", "link_id": "t3_x", "parent_id": "t1_b"}\n')
    monkeypatch.setattr(sys, "argv", ["polyencoder", "prepare-reddit", str(dump), "--out", str(out)])
    with pytest.raises(SystemExit):
        main()
    assert "no comment replies to another one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["RC"]


@pytest.mark.parametrize(
    ("body", "author", "reason"),
    [
        (None, "a", "not text"),
        ("  ", "a", "not text"),
        ("?!?!?!?!?!?!", "a", "not text"),
        ("[deleted]", "a", "deleted or removed"),
        ("[removed]", "a", "deleted or removed"),
        ("a fine comment", "[deleted]", "deleted or removed"),
        ("a fine comment", "AutoModerator", "bot"),
        ("a fine comment", "RemindMeBot", "bot"),
        ("eight ch", "a", "too short"),
        ("x" * 128, "a", "too long"),
        ("look at https://x.org please", "a", "link"),
        ("look at [this](/r/this) please", "a", "link"),
        ("&gt; you said\n\nand I say no", "a", "quote"),
        ("try `ls -l` there", "a", "code"),
        ("so:\n\n    make all", "a", "code"),
    ],
)
def test_why_a_comment_is_left_out(body, author, reason):
    assert reason in REASONS
    with pytest.raises(SkippedComment, match=f"^{reason}$"):
        Filters().clean_text(body, author)
    keep = {"keep_bots": True, "keep_links": True, "keep_quotes": True, "keep_code": True}
    if reason in ("bot", "link", "quote", "code"):
        assert Filters(**keep).clean_text(body, author)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("nine char", "nine char"),
        ("x" * 127, "x" * 127),
        ("one &amp; two\n\nthree", "one & two three"),
        ("1 &lt; 2 is true", "1 < 2 is true"),
        ("robots are fun", "robots are fun"),
    ],
)
def test_what_is_kept_is_one_line_of_text(body, expected):
    assert Filters().clean_text(body, "robothead") == expected


def test_lengths_that_cannot_be():
    with pytest.raises(ConfigError, match="min_length is 10 and max_length 9"):
        Filters(10, 9)
