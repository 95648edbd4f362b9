"""The benchmark of rankers of tools in miniature, with sentence-transformers' training."""

from __future__ import annotations

import json

import pytest

from benchmarks import tools
from tests.parameters import mostly_long


@pytest.fixture
def data(tmp_path):
    """A file of turns and a file of tools for each split, as examples/tools.py reads them."""
    for split, names in {"train": ("weather", "train"), "dev": ("train", "bank"), "test": ("weather", "music")}.items():
        requests = [(f"{n} {name} please", name) for n in range(8) for name in names]
        turns = [{"messages": [{"role": "user", "content": text}], "tools": [name]} for text, name in requests]
        thanks = [{"messages": [{"role": "user", "content": f"thanks {n}"}], "tools": []} for n in range(4)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, thanks + turns)))
        tools = [{"name": name, "description": f"Everything about {name}."} for name in names]
        (tmp_path / f"{split}.json").write_text(json.dumps(tools))
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("minilm_folder")
@mostly_long("trains", [False, True], quick=1)
def test_each_system_has_a_row(data, tmp_path, minilm_folder, capsys, trains):
    mnrl = ["--mnrl", str(tmp_path / "mnrl")] if trains else []
    flags = ["--data", str(data), "--rankers", f"ours={minilm_folder}", *mnrl]
    tools.main([*flags, "--quick", "--tools", "9", "--json"])
    rows = {row["system"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert [*rows] == ["BM25", "MiniLM", *(["MultipleNegativesRankingLoss"] if trains else []), "ours"]
    assert (tmp_path / "mnrl").is_dir() == trains
    accuracy = ("R@1", "seen", "unseen", "none_auroc")
    assert [rows["ours"][name] for name in accuracy] == [rows["MiniLM"][name] for name in accuracy]
    assert rows["BM25"]["R@1"] == rows["MiniLM"]["R@1"] == 1
    assert all(row["ms_2"] > 0 and row["ms_9"] > 0 for row in rows.values())
