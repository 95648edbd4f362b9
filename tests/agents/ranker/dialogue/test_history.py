"""The context that a model reads: turns and persona lines joined by the separator, the latest kept."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polyencoder import Ranker
from polyencoder.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.slow

TURNS = ["your persona: i ski .\nyour persona: i have a cat .\nhello", "how are you ?", "bye"]
REPLIES = ["hi !", "fine ."]
LINES = ["your persona: i ski .", "your persona: i have a cat .", "hello", "hi !", "how are you ?", "fine .", "bye"]


@pytest.fixture
def context_of(make_agent):
    """(**options) -> the ids of the dialogue's context, and the agent."""

    def read(**options):
        agent = make_agent("biencoder", **{"text_truncate": 300, **options}).clone()
        for text, reply in zip(TURNS, REPLIES, strict=False):
            agent.observe({"text": text, "eval_labels": [reply], "episode_done": False})
            agent.self_observe({"text": reply})
        return agent.observe({"text": TURNS[-1], "episode_done": True})["text_vec"], agent

    return read


def lines_of(ids: list[int], agent) -> list[str]:
    """The context's lines, read back from its ids."""
    words = agent.dict
    assert ids[0] == words[words.start_token]
    assert ids[-1] == words[words.end_token]
    separator, lines, line = agent.dict.text.separator_ids, [], []
    position = 1
    while position < len(ids) - 1:
        if ids[position : position + len(separator)] == separator:
            lines.append(line)
            line = []
            position += len(separator)
        else:
            line.append(ids[position])
            position += 1
    return [words.vec2txt(tokens).strip() for tokens in [*lines, line]]


def test_every_line_is_a_turn_of_its_own(context_of):
    ids, agent = context_of()
    assert lines_of(ids, agent) == LINES


@pytest.mark.parametrize("size", [1, 2, 3, 5, -1])
def test_history_size_counts_utterances(size, context_of):
    """Persona lines are none, and stay: also when the message that they came with is forgotten."""
    ids, agent = context_of(history_size=size)
    assert lines_of(ids, agent) == LINES[:2] + (LINES[-size:] if 0 < size < 5 else LINES[2:])


def test_history_size_counts_the_lines_of_a_message(make_agent):
    """DSTC7's contexts come as one message."""
    agent = make_agent("biencoder", history_size=20, text_truncate=300)
    lines = [f"line {n}" for n in range(30)]
    observed = agent.observe({"text": "\n".join(lines), "episode_done": True})
    assert lines_of(observed["text_vec"], agent) == lines[10:]


def test_the_agent_and_the_library_see_the_same_context(context_of):
    for size in (1, 3, -1):
        ids, agent = context_of(history_size=size)
        assert ids == agent.dict.text.tokenize_context(LINES) == agent.dict.text.tokenize_context("\n".join(LINES))


@pytest.mark.parametrize("after_newline", [False, True])
def test_person_tokens_stay_with_the_model(context_of, make_agent, tmp_path, after_newline):
    ids, agent = context_of(person_tokens=True, add_p1_after_newln=after_newline)
    first, hello = ("", "__p1__ ") if after_newline else ("__p1__ ", "")
    lines = [f"{first}{LINES[0]}", LINES[1], f"{hello}hello", "__p2__ hi !", "__p1__ how are you ?"]
    assert lines_of(ids, agent) == [*lines, "__p2__ fine .", "__p1__ bye"]
    agent.save(str(tmp_path / "model"))
    ranker = Ranker.from_pretrained(tmp_path / "model", device="cpu")
    ranker.save_pretrained(tmp_path / "folder")
    for text in (
        ranker.text,
        Ranker.from_pretrained(tmp_path / "folder", device="cpu").text,
        make_agent("biencoder", model_file=str(tmp_path / "folder")).dict.text,
    ):
        assert (
            text.tokenize_context(LINES)
            == text.tokenize_context([TURNS[0], "hi !", TURNS[1], "fine .", TURNS[2]])
            == ids
        )
    again = make_agent("biencoder", model_file=str(tmp_path / "folder")).clone()
    heard = again.observe({"text": "\n".join(LINES[:3]), "episode_done": False})["text_vec"]
    assert heard == ranker.text.tokenize_context(LINES[:3])


@pytest.mark.parametrize("after_newline", [False, True])
def test_each_of_the_split_lines_has_its_person_token(context_of, after_newline):
    """ParlAI has the whole message in the place of each line."""
    ids, agent = context_of(person_tokens=True, split_lines=True, add_p1_after_newln=after_newline)
    heard = [f"__p2__ {line}" if line in REPLIES else f"__p1__ {line}" for line in LINES]
    if after_newline:  # only the last line of a message is what the person says
        heard[:2] = LINES[:2]
    assert lines_of(ids, agent) == heard


@pytest.mark.parametrize("size", [2, 20])
def test_the_next_episode_starts_afresh(context_of, size):
    _, agent = context_of(history_size=size)
    agent.self_observe({"text": "bye !"})
    assert lines_of(agent.observe({"text": "hello again", "episode_done": True})["text_vec"], agent) == ["hello again"]


def test_use_reply_none_leaves_our_words_out(context_of):
    ids, agent = context_of(use_reply="none")
    assert lines_of(ids, agent) == [line for line in LINES if line not in REPLIES]


def test_use_reply_model_remembers_what_was_said(make_agent):
    """A skipped example has no reply."""
    agent = make_agent("biencoder", use_reply="model", datatype="valid", ignore_bad_candidates=True).clone()
    for text, candidates in (("hello", []), ("how are you ?", ["fine ."])):
        agent.observe({"text": text, "label_candidates": candidates, "episode_done": False})
        agent.self_observe(agent.batch_act([agent.observation])[0])
    agent.observe({"text": "bye", "episode_done": False})
    assert agent.history.list_turns() == ["hello", "how are you ?", "fine .", "bye"]


def test_use_reply_model_in_training_needs_replies(make_agent):
    with pytest.raises(ConfigError, match="--use-reply model: in training it needs --train-predict true"):
        make_agent("biencoder", use_reply="model")


def test_a_delimiter_of_ones_own(context_of):
    ids, agent = context_of(delimiter=" || ")
    assert agent.dict.text.separator_ids == agent.dict.txt2vec(" || ")
    assert lines_of(ids, agent) == LINES


# ---- --turn-separator


@pytest.mark.parametrize(("how", "between"), [("sep", ["[SEP]"]), ("newline", ["[NEWLINE]"]), ("none", [])])
def test_what_stands_between_turns_stays_with_the_model(how, between, context_of, make_agent, tmp_path):
    ids, agent = context_of(turn_separator=how)
    assert agent.dict.text.separator_ids == [agent.dict[token] for token in between]
    lines = [agent.dict.txt2vec(line) for line in LINES]
    separator = agent.dict.text.separator_ids
    assert ids[1:-1] == sum(([*separator, *line] for line in lines[1:]), lines[0])
    agent.save(str(tmp_path / "model"))
    assert json.loads((tmp_path / "model.opt").read_text())["turn_separator"] == how
    for text in (
        make_agent("biencoder", model_file=tmp_path / "model").dict.text,
        make_agent("biencoder", model_file=tmp_path / "model", turn_separator=how).dict.text,
        Ranker.from_pretrained(tmp_path / "model").text,
    ):
        assert text.tokenize_context(LINES) == ids
    other = "none" if how != "none" else "newline"
    with pytest.raises(CheckpointError, match=f"--turn-separator {other} contradicts .*, which was trained with {how}"):
        make_agent("biencoder", model_file=tmp_path / "model", turn_separator=other)


def test_a_trained_model_may_start_another_one_with_a_newline(copy_of, make_agent, respond, task, tmp_path):
    options = {**task, "init_model": str(copy_of("biencoder")), "dict_file": None, "reduction_type": "mean"}
    agent = make_agent("biencoder", **options, turn_separator="newline")
    text = agent.dict.text
    assert text.separator_ids == [len(text) - 1]
    assert agent.ranker.config.backbone["vocab_size"] == len(text)
    before = agent.ranker.context_tower.model.get_input_embeddings().weight[-1].detach().clone()
    respond(agent, *({"text": f"hello\n{word}", "labels": [word]} for word in ("owl", "cat")))
    assert not before.equal(agent.ranker.context_tower.model.get_input_embeddings().weight[-1])
    agent.save(str(tmp_path / "other"))
    again = make_agent("biencoder", **{**options, "init_model": str(tmp_path / "other")})
    assert again.dict.text.separator_ids == text.separator_ids  # its own, as the flag is not given


@pytest.mark.parametrize("how", ["sep", "newline", "none"])
def test_a_pretrained_encoder_gets_it_in_the_library_as_in_training(how, backbone_folder, make_agent, tmp_path):
    lengths = {"text_truncate": 30, "label_truncate": 10}
    folder = backbone_folder("bert")
    dict_file = str(tmp_path / "new.dict")
    agent = make_agent("biencoder", backbone=str(folder), dict_file=dict_file, turn_separator=how, **lengths)
    ranker = Ranker.from_backbone(folder, "bi", text=lengths, turn_separator=how)
    assert agent.dict.text.tokenize_context(["hi", "bye"]) == ranker.text.tokenize_context(["hi", "bye"])
    assert agent.dict.text.compute_fingerprint() == ranker.text.compute_fingerprint()
    assert ranker.model.config.backbone["vocab_size"] >= len(ranker.text)
    assert np.isfinite(ranker.score([["hi", "bye"]], ["hello"])).all()


def test_a_delimiter_and_a_separator_exclude_each_other(make_agent):
    with pytest.raises(ConfigError, match="--delimiter and --turn-separator both set the separator of turns"):
        make_agent("biencoder", delimiter=" || ", turn_separator="newline")


def test_a_temporary_history_belongs_to_the_last_turn(make_agent):
    agent = make_agent("biencoder")
    agent.get_temp_history = lambda observation: " , please"
    first = agent.observe({"text": "where is the owl", "eval_labels": ["here"], "episode_done": False})
    assert lines_of(first["text_vec"], agent) == ["where is the owl , please"]
    agent.self_observe({"text": "here"})
    second = agent.observe({"text": "and the cat", "episode_done": True})
    assert lines_of(second["text_vec"], agent) == ["where is the owl", "here", "and the cat , please"]
