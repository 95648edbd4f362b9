"""MAP: a map that undoes a rotation is found, equal responses are not wrong, and the command prints its metrics."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.reproduce import map as command
from benchmarks.reproduce.map import PairVectors, compute_recall_at_1, fit_map

pytestmark = pytest.mark.slow


@pytest.fixture
def rotated() -> PairVectors:
    """Responses that are their contexts, rotated and with a little noise, of length 4: 400 pairs."""
    generator = torch.Generator().manual_seed(0)
    contexts = 4 * torch.nn.functional.normalize(torch.randn(400, 8, generator=generator), dim=1)
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=generator))[0]
    responses = contexts @ rotation.T + 0.1 * torch.randn(400, 8, generator=generator)
    return PairVectors(contexts, responses, torch.arange(400))


@pytest.mark.long
def test_a_map_undoes_a_rotation(rotated):
    train, held_out = rotated.take(torch.arange(300)), rotated.take(torch.arange(300, 400))
    matrix, recall = fit_map(train, held_out, max_epochs=20)
    assert compute_recall_at_1(torch.eye(8), held_out) < 0.1
    assert recall == compute_recall_at_1(matrix, held_out) > 0.9


def test_vectors_that_match_stay(rotated):
    same = rotated._replace(responses=rotated.contexts)
    matrix, recall = fit_map(same.take(torch.arange(300)), same.take(torch.arange(300, 400)), max_epochs=2)
    assert torch.equal(matrix, torch.eye(8))
    assert recall == 1


def test_equal_responses_are_not_wrong(rotated):
    pairs = rotated.take(torch.arange(3))._replace(texts=torch.tensor([0, 1, 0]))
    assert pairs.score(torch.eye(8)).isinf().tolist() == [[False, False, True], [False] * 3, [True, False, False]]


def test_a_map_that_is_not_finite_is_never_right(rotated):
    assert compute_recall_at_1(torch.full((8, 8), torch.nan), rotated) == 0


def test_the_command_prints_the_metrics_of_mapped_vectors(bert, tmp_path, capsys):
    lines = [{"context": f"question number {n}", "response": f"the answer to {n}"} for n in range(120)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = ["--train", str(tmp_path / "pairs.jsonl"), "--test", str(tmp_path / "pairs.jsonl")]
    command.main(["--encoder", str(bert), *files, "--max-epochs", "1"])
    report = json.loads(capsys.readouterr().out)
    assert {"held_out", "R100@1", "mrr"} <= report.keys()
    assert 0 <= report["R100@1"] <= 1
