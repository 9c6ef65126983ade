"""States that are known by three numbers, and the comparison of whole states, bit by bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

STEADY = 12


def state_of(seed: int, step: int, attempt: int) -> dict[str, Any]:
    """Mostly what other steps of the seed have too; some of it only this step and attempt has."""
    steady = {f"w{n}": _noise(f"{seed}/{n}", 5000 + 700 * n) for n in range(STEADY)}
    choose = random.Random(f"{seed}/{step}/{attempt}")
    for name in choose.sample(sorted(steady), choose.randrange(STEADY)):
        steady[name] = _noise(f"{seed}/{name}/{step}/{attempt}", len(steady[name]))
    return {
        "attempt": attempt,
        "step": step,
        "model": steady,
        "optimizer": [np.float32(step), (choose.random(), _noise(f"{seed}/{step}/{attempt}", 3), None)],
    }


def _noise(words: str, length: int) -> Any:
    return np.random.default_rng(list(words.encode())).integers(0, 256, length, dtype=np.uint8)


def same(one: Any, other: Any) -> bool:
    """The same types, keys, order and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, (np.ndarray, np.generic)):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    if type(one).__module__.startswith("torch"):
        return bool(one.dtype == other.dtype and one.shape == other.shape) and _bits(one) == _bits(other)
    return bool(one == other) or (one != one and other != other)


def _bits(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
