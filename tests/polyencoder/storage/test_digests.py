from __future__ import annotations

import hashlib

import numpy as np
import torch

from polyencoder.storage.digests import (
    compute_ends_fingerprint,
    compute_file_digest,
    compute_fingerprint,
    iter_weight_parts,
)


def test_the_fingerprint_counts_where_a_part_ends():
    parts = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], []]
    assert len({compute_fingerprint(part) for part in parts}) == len(parts)


def test_the_fingerprint_is_of_the_bytes():
    numbers = np.arange(4, dtype=np.float32)
    assert compute_fingerprint([numbers.data]) == compute_fingerprint([numbers.tobytes()])
    assert compute_fingerprint(["ä"]) == compute_fingerprint(["ä".encode()])
    assert compute_fingerprint(["a"]) == "fc9c942180a48b1bfa36938828a429dc"  # a digest on disk stays valid


def test_weights_differ_by_name_dtype_and_bytes():
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    others = [{"b": weight}, {"a": weight.view(torch.int32)}, {"a": weight + 1}, {"a": weight, "b": weight}, {}]
    digests = [compute_fingerprint(iter_weight_parts(weights)) for weights in ({"a": weight}, *others)]
    assert len({*digests}) == len(digests)
    strided = weight.t().contiguous().t().requires_grad_()
    assert compute_fingerprint(iter_weight_parts({"a": strided})) == digests[0]


def test_files_by_their_contents_and_by_their_ends(tmp_path):
    big = tmp_path / "big"
    content = bytearray(range(256)) * (1 << 10)  # 256 KB: longer than both ends together
    big.write_bytes(content)
    read: list[int] = []
    assert compute_file_digest(big, progress=read.append) == hashlib.sha256(content).hexdigest()
    assert sum(read) == len(content)
    assert compute_file_digest(big, new=hashlib.md5) == hashlib.md5(content).hexdigest()
    ends = compute_ends_fingerprint(big)
    for position, is_seen in ((0, True), (len(content) // 2, False), (len(content) - 1, True)):
        content[position] ^= 1
        big.write_bytes(content)
        assert (compute_ends_fingerprint(big) != ends) is is_seen
        content[position] ^= 1


def test_the_keys_of_a_teachers_scores_stay_valid():
    assert compute_fingerprint([b"a"], size=8) == hashlib.blake2b(b"\1" + bytes(7) + b"a", digest_size=8).hexdigest()
