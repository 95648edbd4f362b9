"""The file of sessions: shared, bounded in number and age, and no turn overwrites another."""

from __future__ import annotations

import pytest

from polyencoder.errors import ConfigError
from polyencoder.serving.sessions import NoSession, SessionBusy, Sessions


@pytest.fixture
def make_sessions(tmp_path):
    now = [0.0]

    def make(**settings) -> Sessions:
        limits = {"most": 3, "seconds": 10.0, "most_turns": 4} | settings
        return Sessions(tmp_path / "sessions.sqlite", clock=lambda: now[0], **limits)

    make.now = now
    return make


def begun(sessions, persona=()) -> str:
    session = sessions.new(list(persona))
    sessions.add_turns(session, "hello", "hi")
    return session.id


def test_workers_share_what_was_said(make_sessions):
    one, other = make_sessions(), make_sessions()
    id_ = begun(one, ["your persona: i ski ."])
    other.add_turns(other.read(id_), "how are you ?", "fine")
    assert one.read(id_)[1:] == (["your persona: i ski ."], ["hello", "hi", "how are you ?", "fine"], 2)
    other.add_turns(other.read(id_), "good", "yes")
    assert one.read(id_).turns == ["how are you ?", "fine", "good", "yes"]  # four are kept


def test_long_turns_leave_room_for_the_next(make_sessions):
    sessions = make_sessions(most_characters=20)
    id_ = begun(sessions)
    sessions.add_turns(sessions.read(id_), "a" * 9, "b" * 9)
    assert sessions.read(id_).turns == ["a" * 9, "b" * 9]
    sessions.add_turns(sessions.read(id_), "c" * 99, "d")
    assert sessions.read(id_).turns == ["c" * 99, "d"]


def test_the_oldest_go_when_there_are_too_many(make_sessions):
    sessions = make_sessions()
    ids = []
    for n in range(5):
        make_sessions.now[0] = n
        ids.append(begun(sessions))
    assert len(sessions) == 3
    assert [sessions.read(id_).id for id_ in ids[2:]] == ids[2:]
    with pytest.raises(NoSession):
        sessions.read(ids[1])


def test_one_that_is_not_used_is_forgotten(make_sessions):
    sessions = make_sessions()
    id_ = begun(sessions)
    make_sessions.now[0] = 9
    sessions.add_turns(sessions.read(id_), "a", "b")
    make_sessions.now[0] = 18
    read = sessions.read(id_)
    make_sessions.now[0] = 19
    with pytest.raises(NoSession):
        sessions.read(id_)
    begun(sessions)
    assert len(sessions) == 1
    with pytest.raises(SessionBusy):
        sessions.add_turns(read, "a", "b")


def test_two_answers_to_the_same_turns_are_one_too_many(make_sessions):
    sessions = make_sessions()
    id_ = begun(sessions)
    first, second = sessions.read(id_), sessions.read(id_)
    sessions.add_turns(first, "a", "b")
    with pytest.raises(SessionBusy):
        sessions.add_turns(second, "c", "d")
    assert sessions.read(id_).turns == ["hello", "hi", "a", "b"]


def test_a_file_that_is_none_is_an_error(tmp_path):
    (tmp_path / "text").write_text("no database, but long enough to be taken for one" * 100)
    with pytest.raises(ConfigError, match=r"not a file of sessions, .* \(file is not a database\): make room"):
        Sessions(tmp_path / "text", most=1, seconds=1.0)
