"""What processes tell each other, in two or three of them on this machine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyencoder.training import distributed
from polyencoder.training.distributed import (
    Processes,
    gather_objects,
    gather_vectors,
    sum_gradients,
    sum_over_processes,
)
from tests.parameters import mostly_long

pytestmark = pytest.mark.slow


def test_objects_in_the_order_of_ranks(in_processes):
    assert (
        in_processes(lambda rank: gather_objects({"rank": rank, "texts": ["é"] * rank}), count=3)
        == [[{"rank": rank, "texts": ["é"] * rank} for rank in range(3)]] * 3
    )


def test_a_process_alone_has_what_is_its_own():
    assert gather_objects("mine") == ["mine"]
    assert sum_over_processes(3, device=torch.device("cpu")) == 3
    assert Processes.from_group() == Processes(rank=0, count=1)
    assert Processes().take_share([1, 2, 3]) == [1, 2, 3]
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    sum_gradients([parameter])
    assert parameter.grad.tolist() == [1, 1]


def test_processes_share_what_there_is(in_processes):
    """Each thing has one process, and one of these is the first."""

    def run(rank):
        here = Processes.from_group()
        return (
            here.rank,
            here.count,
            here.is_first,
            here.take_share("abcde"),
            sum_over_processes(rank, device=torch.device("cpu")),
        )

    expected = [(0, 3, True, "ad", 3), (1, 3, False, "be", 3), (2, 3, False, "c", 3)]
    assert in_processes(run, count=3) == expected


@mostly_long(
    ("counts", "dtype"),
    [([3, 5], torch.float32), ([0, 4], torch.bfloat16), ([3, 5], torch.float64), ([2, 0, 3], torch.float32)],
    quick=3,
)
def test_gathered_vectors_and_their_gradients(counts, dtype, in_processes):
    """A loss of each process that weighs all vectors differently; the reference has all of them in one place."""
    torch.manual_seed(0)
    vectors = torch.randn(sum(counts), 4, dtype=dtype)
    weights = torch.randn(len(counts), sum(counts), 4, dtype=dtype)

    def run(rank):
        start = sum(counts[:rank])
        local = vectors[start : start + counts[rank]].clone().requires_grad_()
        everything = gather_vectors(local * 2, counts)
        (everything * weights[rank]).sum().backward()
        return everything.detach().float().tolist(), local.grad.float().tolist()

    results = in_processes(run, count=len(counts))
    gradients = 2 * weights.float().sum(0)
    for rank, (everything, gradient) in enumerate(results):
        assert everything == (2 * vectors).float().tolist()
        expected = gradients[sum(counts[:rank]) : sum(counts[: rank + 1])]
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(torch.tensor(gradient).view(-1, 4), expected, rtol=tolerance, atol=tolerance)


def test_nobody_has_a_vector(in_processes):
    assert in_processes(lambda rank: list(gather_vectors(torch.zeros(0, 4), [0, 0]).shape)) == [[0, 4], [0, 4]]


def test_a_process_whose_vectors_need_no_gradient_takes_part(in_processes):
    def run(rank):
        local = torch.ones(1, 2, requires_grad=rank == 0)
        gather_vectors(local, [1, 1]).sum().backward()
        return local.grad is None or local.grad.tolist()

    assert in_processes(run) == [[[2.0, 2.0]], True]


@pytest.mark.parametrize("bucket", [1, 7, 1 << 23])
def test_gradients_are_summed(monkeypatch, in_processes, bucket):
    """One that a process has not counts as zero, one that nobody has stays away, one that is frozen is left alone."""
    monkeypatch.setattr(distributed, "BUCKET", bucket)

    def run(rank):
        parameters = [nn.Parameter(torch.zeros(2, 3)) for _ in range(3)]
        parameters += [nn.Parameter(torch.zeros(5, dtype=torch.float64)), nn.Parameter(torch.zeros(1))]
        parameters[0].grad = torch.full((2, 3), rank + 1.0)
        if rank == 1:
            parameters[1].grad = torch.arange(6.0).view(2, 3)
        parameters[3].grad = torch.full((5,), 10.0 ** (rank + 8), dtype=torch.float64)
        parameters[4].requires_grad_(False)
        sum_gradients(parameters)
        return [None if p.grad is None else (str(p.grad.dtype), p.grad.tolist()) for p in parameters]

    expected = [
        ("torch.float32", [[3.0] * 3] * 2),
        ("torch.float32", torch.arange(6.0).view(2, 3).tolist()),
        None,
        ("torch.float64", [1.1e9] * 5),
        None,
    ]
    assert in_processes(run) == [expected, expected]
