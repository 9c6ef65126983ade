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


def same(value: Any, other: Any) -> bool:
    """The same types, keys, order and bits."""
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return list(value) == list(other) and all(same(value[key], other[key]) for key in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(same(a, b) for a, b in zip(value, other, strict=True))
    if isinstance(value, (np.ndarray, np.generic)):
        return (value.dtype, value.shape) == (other.dtype, other.shape) and value.tobytes() == other.tobytes()
    if type(value).__module__.startswith("torch"):
        return bool(value.dtype == other.dtype and value.shape == other.shape) and _bits(value) == _bits(
            other
        )
    return bool(value == other) or (value != value and other != other)


def _bits(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""
