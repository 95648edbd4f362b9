"""The benchmark of the selector in miniature."""

from __future__ import annotations

import json

import pytest

from benchmarks.select import measure, read

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

DOMAINS = {"Dogs": "dogs", "Cats": "cat", "Ski": "mountains", "Math": "school"}


def write_split(folder, *, number: int) -> None:
    """Services `Dogs_1`, `Dogs_2`, ..., and dialogues of a stated intent, an answer and a good-bye."""
    folder.mkdir()
    services = [f"{domain}_{n}" for domain in DOMAINS for n in (1, 2)]
    intents = [{"name": "Find", "description": "find it", "required_slots": ["city"], "optional_slots": {}}]
    slots = [{"name": "city", "description": "where"}]
    schema = [  # the vocabulary has these words: tools must not have equal tokens
        {"service_name": one, "description": f"my {DOMAINS[one[:-2]]} {one[-1]}", "slots": slots, "intents": intents}
        for one in services
    ]
    (folder / "schema.json").write_text(json.dumps(schema))

    def turn(service, text, intent):
        actions = [{"act": "INFORM_INTENT"}] if intent != "NONE" else []
        frames = [{"service": service, "state": {"active_intent": intent}, "actions": actions}]
        return {"speaker": "USER", "utterance": text, "frames": frames}

    dialogues = []
    for n in range(number):
        service = services[n % len(services)]
        said = DOMAINS[service.partition("_")[0]]
        answer = {"speaker": "SYSTEM", "utterance": "yes", "frames": []}
        turns = [turn(service, f"my {said} {n} ?", "Find"), answer, turn(service, f"no , thanks {n} .", "NONE")]
        dialogues.append({"services": [service], "turns": turns})
    (folder / "dialogues_001.json").write_text(json.dumps(dialogues))


def test_rows_and_groups(backbone_folder, tmp_path):
    for split, number in (("train", 32), ("dev", 30), ("test", 24)):
        write_split(tmp_path / split, number=number)
    data = read(tmp_path, tested=10, fitted=30, trained=16)
    assert list(map(len, (data.train, data.fitted, data.tested, data.idle))) == [16, 30, 20, 10]
    for one in data.tested:
        names = [tool["name"] for tool in one.options]
        assert one.right in names
        assert len(names) == len(DOMAINS)  # one service of each domain, the dialogue's own of its own
        assert {tool["name"] for tool in one.without} == {*names} - {one.right}
    assert all(one.turns[-1].startswith("no , thanks") for one in data.idle)
    (tmp_path / "run").mkdir()
    rows = measure(str(backbone_folder("bert")), data, tmp_path / "run", updates=1)
    assert [row["system"] for row in rows] == ["cosine with a threshold", "selector", "selector, trained"]
    for row in rows:
        assert row["accuracy"] == pytest.approx((row["right_answered"] + 2 * row["right_none"]) / 3)
        assert row["ms"] > 0
