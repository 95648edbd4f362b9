"""The sample task: the same everywhere, and exactly one candidate right."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from parlai.core.metrics import normalize_answer
from parlai.scripts.display_data import DisplayData
from parlai.tasks.selection import phrases
from parlai.tasks.selection.grammar import CANDIDATES, write_dialogues
from parlai.tasks.selection.sample import sample_dialogues

pytestmark = pytest.mark.usefixtures("no_network")

# Of all words of the validation split. If this changes, so do published scores: say so in the change's description.
VALID_SHA256 = "c4d2f0376e83e4762d46b9556c3aea4710d4fe57b68d139afe85b39d53d12cba"


def words(dialogues) -> str:
    return "\n".join(
        "\n".join([turn.text, turn.label.text, *(reply.text for reply in turn.candidates)])
        for dialogue in dialogues
        for turn in dialogue.turns
    )


def digest(dialogues) -> str:
    return hashlib.sha256(words(dialogues).encode()).hexdigest()


@pytest.fixture(scope="module")
def turns():
    return [turn for dialogue in sample_dialogues("train") for turn in dialogue.turns]


def test_published_bytes():
    assert digest(sample_dialogues("valid")) == VALID_SHA256


def test_seed_and_split_decide_everything():
    assert digest(write_dialogues("valid", 20, seed=3)) == digest(write_dialogues("valid", 20, seed=3))
    others = [digest(write_dialogues(split, 20, seed=seed)) for split in ("valid", "train") for seed in (3, 4)]
    assert len(set(others)) == 4


@pytest.mark.parametrize(("split", "episodes"), [("train", 1000), ("valid", 100), ("test", 100)])
def test_counts_and_messages(make_teacher, messages, split, episodes):
    datatype = "train:ordered" if split == "train" else split
    teacher = make_teacher("selection:sample", datatype=datatype)
    assert (teacher.num_episodes(), teacher.num_examples()) == (episodes, 4 * episodes)
    seen = messages(teacher)
    assert len(seen) == 4 * episodes
    assert [m["episode_done"] for m in seen[:8]] == [False, False, False, True] * 2
    for number, message in enumerate(seen):
        (label,) = message.get("labels") or message["eval_labels"]
        assert message["label_candidates"].count(label) == 1
        assert len(message["label_candidates"]) == 20
        assert message["text"].count("your persona: ") == (4 if number % 4 == 0 else 0)
        assert "choices" not in message


def test_exactly_one_candidate_is_right(turns):
    for turn in turns:
        assert len(turn.candidates) == CANDIDATES
        assert [reply for reply in turn.candidates if reply.meaning == turn.label.meaning] == [turn.label]
        # hits@k compares normalised text: no distractor may differ from the label in punctuation or articles alone
        normal = [normalize_answer(reply.text) for reply in turn.candidates]
        assert len(set(normal)) == CANDIDATES


def test_no_words_mean_two_things():
    """What makes `meaning` trustworthy: each sentence without its opener is written for one topic and value alone."""
    meanings: dict[str, set] = {}
    for topic in (*phrases.PERSONA, *phrases.STATED):
        templates = topic.answers if topic in phrases.PERSONA else (*topic.acknowledgements, *topic.recalls)
        for value in topic.values:
            for template in templates:
                meanings.setdefault(value.fill(template), set()).add((topic.name, value))
    for talk in phrases.TALK:
        for reply in talk.replies:
            meanings.setdefault(reply, set()).add(talk)
    assert {text: senses for text, senses in meanings.items() if len(senses) > 1} == {}


def test_distractors_are_hard_and_easy(turns):
    turns_of_persona = [turn for turn in turns if turn.label.meaning[0] in {topic.name for topic in phrases.PERSONA}]
    for turn in turns_of_persona:
        same_topic = sum(reply.meaning[0] == turn.label.meaning[0] for reply in turn.candidates)
        assert 1 + 5 <= same_topic <= 1 + 5 + 8  # the label, one reply for each other value, and chance
    assert 0.4 < len(turns_of_persona) / len(turns) < 0.6


def test_label_stands_anywhere(turns):
    positions = Counter(turn.candidates.index(turn.label) for turn in turns)
    assert sorted(positions) == list(range(CANDIDATES))
    assert min(positions.values()) > 140  # 200 expected, standard deviation 14
    assert max(positions.values()) < 260


def test_labels_vary(turns):
    labels = Counter(turn.label.text for turn in turns)
    assert len(labels) > 1000
    assert max(labels.values()) <= len(turns) / 100


def test_what_is_recalled_was_told_before():
    names = {topic.name: topic for topic in phrases.STATED}
    recalled = 0
    for dialogue in sample_dialogues("valid"):
        for number, turn in enumerate(dialogue.turns):
            topic = names.get(turn.label.meaning[0])
            if topic is None or turn.text not in topic.questions:
                continue
            (earlier,) = (t for t in range(number) if dialogue.turns[t].label.meaning == turn.label.meaning)
            assert number - earlier >= 2
            recalled += 1
    assert recalled > 20


def test_splits_share_no_dialogue():
    train, valid = (
        {(d.persona, *(turn.text for turn in d.turns)) for d in sample_dialogues(split)} for split in ("train", "valid")
    )
    assert not train & valid


def test_batch_training_does_not_pay_for_candidates(make_teacher):
    assert "label_candidates" not in make_teacher("selection:sample", datatype="train", candidates="batch").act()
    assert len(make_teacher("selection:sample", datatype="train", candidates="inline").act()["label_candidates"]) == 20
    message = make_teacher("selection:sample", candidates="batch", eval_candidates="inline").act()
    assert len(message["label_candidates"]) == 20


def test_stream_stays_in_memory(make_teacher, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_teacher("selection:sample", datatype="valid:stream").num_examples() == 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", ["selection", "selection:sample"])
def test_display_data(capsys, task):
    DisplayData.main(task=task, num_examples=4)
    output = capsys.readouterr().out
    assert "NEW EPISODE: " + task in output
    assert "your persona: " in output
