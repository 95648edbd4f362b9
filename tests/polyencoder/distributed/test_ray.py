"""Two actors of a real Ray on this machine give what one process gives, bit by bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from polyencoder.distributed import EncodeCandidates, encode_parts, map_with_ray
from polyencoder.errors import InputError

pytest.importorskip("pyarrow")
ray = pytest.importorskip("ray", reason="ray is not installed")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield
    ray.shutdown()


def test_two_workers_are_one_process(tmp_path, make_ranker, sentences):
    make_ranker("poly").save_pretrained(tmp_path / "model")
    candidates = [f"{text} {i}" for i in range(3) for text in sentences]
    encode = EncodeCandidates(str(tmp_path / "model"), device="cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as Ray's actors have one
    try:
        encode_parts(candidates, tmp_path / "one", encode, rows=5)
    finally:
        torch.set_num_threads(threads)
    encode_parts(candidates, tmp_path / "two", encode, rows=5, mapper=partial(map_with_ray, workers=2))
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert len(one) == -(-len(candidates) // 5)

    dataset = ray.data.from_items([{"text": text, "id": str(i)} for i, text in enumerate(candidates)])
    settings = {"fn_constructor_args": [str(tmp_path / "model")], "fn_constructor_kwargs": {"device": "cpu"}}
    mapped = dataset.map_batches(EncodeCandidates, batch_size=5, batch_format="pyarrow", concurrency=2, **settings)
    rows = {row["id"]: row for row in mapped.take_all()}
    own = make_ranker("poly").encode_candidates(candidates)
    for i, text in enumerate(candidates):
        assert rows[str(i)]["text"] == text
        torch.testing.assert_close(torch.tensor(rows[str(i)]["vector"]), own[i])


def test_the_first_error_is_ours():
    def refuse(table):
        raise InputError(f"no {table}")

    with pytest.raises(InputError, match="no table 0"):
        list(map_with_ray(refuse, [(i, f"table {i}") for i in range(9)], workers=1))
