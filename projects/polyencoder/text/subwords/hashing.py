"""A hash that is the same in every process and on every machine: FarmHash's `Fingerprint64`, of a single character.

TensorFlow's `StringToHashBucketFast` is this function, so unknown characters get the ids that the published graphs
give them. Source: farmhash.cc of Google's FarmHash (MIT licence), `HashLen0to16`, of which a character needs the half.
"""

from __future__ import annotations

__all__ = ["fingerprint64"]

_K0, _K2 = 0xC3A5C85C97CB3127, 0x9AE16A3B2F90404F
_64_BITS = (1 << 64) - 1


def fingerprint64(character: str) -> int:
    """The fingerprint of the one to four bytes that a character has in UTF-8: 64 bits, unsigned."""
    data = character.encode()
    length = len(data)
    if length == 4:
        word = int.from_bytes(data, "little")
        return _hash_16(length + (word << 3), word, _K2 + length * 2)
    first, middle, last = data[0], data[length >> 1], data[-1]
    mixed = ((first + (middle << 8)) * _K2 ^ (length + (last << 2)) * _K0) & _64_BITS
    return (mixed ^ mixed >> 47) * _K2 & _64_BITS


def _hash_16(u: int, v: int, factor: int) -> int:
    a = (u ^ v) * factor & _64_BITS
    a ^= a >> 47
    b = (v ^ a) * factor & _64_BITS
    b ^= b >> 47
    return b * factor & _64_BITS
