"""Random seeds derived from names, so that every stream is a pure function of the job's seed."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and the path of ``names`` and on nothing else.

    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 1)
    True
    >>> derive_seed(0, "epoch", 1) == derive_seed(0, "epoch", 2)
    False
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


_GOLDEN = 0x9E3779B97F4A7C15


def fold(seed: int, *numbers: int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and ``numbers``, cheap enough for every step.

    The finaliser of SplitMix64 (Steele et al. 2014, OOPSLA, "Fast splittable pseudorandom number generators") over each
    number in turn.

    >>> fold(1, 2, 3) == fold(1, 2, 3), fold(1, 2, 3) == fold(1, 3, 2)
    (True, False)
    """
    for number in numbers:
        seed = (seed + _GOLDEN * (number + 1)) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        seed = ((seed ^ (seed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        seed ^= seed >> 31
    return seed >> 1
