from __future__ import annotations

import numpy as np
import torch

from polyencoder.storage.digests import fingerprint, weight_parts


def test_the_fingerprint_counts_where_a_part_ends():
    parts = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], []]
    assert len({fingerprint(p) for p in parts}) == len(parts)


def test_the_fingerprint_is_of_the_bytes():
    numbers = np.arange(4, dtype=np.float32)
    assert fingerprint([numbers.data]) == fingerprint([numbers.tobytes()])
    assert fingerprint(["ä"]) == fingerprint(["ä".encode()])
    assert fingerprint(["a"]) == "fc9c942180a48b1bfa36938828a429dc"  # a digest on disk stays valid


def test_weights_differ_by_name_dtype_and_bytes():
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    others = [{"b": weight}, {"a": weight.view(torch.int32)}, {"a": weight + 1}, {"a": weight, "b": weight}, {}]
    digests = [fingerprint(weight_parts(weights)) for weights in ({"a": weight}, *others)]
    assert len({*digests}) == len(digests)
    strided = weight.t().contiguous().t().requires_grad_()
    assert fingerprint(weight_parts({"a": strided})) == digests[0]
