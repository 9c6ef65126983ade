"""Every kind of tensor, array and value comes back as it was, bit by bit; what can't is refused."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.base.errors import CheckpointMismatchError, CheckpointNotFoundError, NotSupportedError
from headrace.checkpoint import SaveOptions, load, save, verify
from tests.unit.checkpoint.states import same

DTYPES = [
    value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits"))
]
OPTIONS = SaveOptions(chunk_bytes=4096, slot_bytes=8192)


def raw(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Random bits, those of a bool 0 or 1."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    bits = np.random.default_rng(seed).integers(0, 256, count * size, dtype=np.uint8)
    return torch.from_numpy(bits & 1 if dtype == torch.bool else bits).view(dtype)


@pytest.mark.parametrize("compress", ["never", "always"])
def test_every_dtype_of_torch(tmp_path: Path, compress: Any) -> None:
    assert {torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint16} <= set(DTYPES)
    state = {
        str(dtype): [raw(dtype, 5000), raw(dtype, 1).reshape(()), raw(dtype, 0).reshape(0, 3), raw(dtype, 24)]
        for dtype in DTYPES
    }
    options = SaveOptions(chunk_bytes=4096, slot_bytes=8192, compress=compress)
    save(state, str(tmp_path), 1, options=options)
    loaded_state = load(str(tmp_path))
    assert same(loaded_state, state)
    verify(str(tmp_path))


def test_tensors_that_are_not_contiguous_or_share_memory(tmp_path: Path) -> None:
    state: dict[str, Any]
    base = torch.arange(60_000, dtype=torch.float32).reshape(200, 300)
    imaginary = torch.complex(base, base + 1)
    state = {
        "transposed": base.t(), "strided": base[::3, 1::2], "row": base[7], "tail": base.reshape(-1)[59_000:],
        "expanded": torch.tensor([1.5, 2.5]).expand(4000, 2), "conjugate": imaginary.conj(),
        "negative": imaginary.conj().imag,
        "channels_last": torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last),
        "parameter": torch.nn.Parameter(base.clone()), "array": np.arange(9000).reshape(90, 100).T[::2],
    }  # fmt: skip
    save(state, str(tmp_path), 1, options=OPTIONS)
    loaded_state = load(str(tmp_path))
    for name, value in state.items():
        if isinstance(value, np.ndarray):
            assert same(loaded_state[name], np.ascontiguousarray(value))
        else:
            assert torch.equal(loaded_state[name], value) and loaded_state[name].dtype == value.dtype
            assert type(loaded_state[name]) is torch.Tensor


def test_tied_tensors_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    weight = torch.randn(100, 100)
    done = save(
        {"in": weight, "out": weight.detach(), "view": weight[:50]}, str(tmp_path), 1, options=OPTIONS
    )
    assert done.data_bytes == 60_000
    loaded_state = load(str(tmp_path))
    assert loaded_state["in"] is loaded_state["out"]
    assert torch.equal(loaded_state["view"], weight[:50])


def test_a_conjugate_or_negative_view_is_not_taken_for_its_base(tmp_path: Path) -> None:
    base = torch.complex(torch.randn(60, 70), torch.randn(60, 70))
    state = {
        "base": base, "conjugate": base.conj(), "again": [base, base.conj()],
        "imaginary": base.imag, "negative": base.conj().imag,
    }  # fmt: skip
    done = save(state, str(tmp_path), 1, options=OPTIONS)
    loaded_state = load(str(tmp_path))
    assert same(loaded_state, state)
    assert done.data_bytes == (8 + 8 + 4 + 4) * base.numel()
    assert loaded_state["again"][1] is loaded_state["conjugate"]


def test_arrays_and_plain_values(tmp_path: Path) -> None:
    state = {
        "arrays": [np.arange(3000).astype(code) for code in "bBhHiIlLqQfdeFD?"] + [np.arange(5, dtype=">i4")],
        "texts": np.array(["a", "ü" * 9]), "when": np.array(["2026-01-02"], "M8[D]"), "none": np.empty((0, 4)),
        "zero": np.array(3.5), "scalars": (np.float64(0.1), np.int8(-3), np.bool_(True)),
        "plain": [0, -1, 2**200, -(2**70), True, False, None, 0.1, -0.0, float("inf"), float("nan"), 1e-320, "", "ü\0",
                  b"", bytes(range(256)), (), [], {}],
        3: {None: 1, True: 2, -7: 3, 0.5: 4, b"k": 5}, "": {"": 0}, "a.b": {"c": 1}, "a": {"b.c": 2},
        "ordered": OrderedDict(b=1, a=2),
    }  # fmt: skip
    save(state, str(tmp_path), 1, options=OPTIONS)
    assert same(load(str(tmp_path)), {**state, "ordered": {"b": 1, "a": 2}})
    bare: Any
    for bare in (torch.arange(5000), 3, "text", [np.arange(3)], {}):
        save(bare, str(tmp_path), 1, options=OPTIONS)
        assert same(load(str(tmp_path)), bare)


def test_what_cannot_be_saved_is_refused_by_its_name(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    pair = namedtuple("pair", "a b")
    refused: list[Any] = [
        object(), lambda: 1, {1, 2}, pair(1, 2), np.array([None]), np.zeros(3, "i4,f4"), np.ma.masked_array([1]),
        torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.float32, 1j, bytearray(b"x"), "\ud800", endless,
        {(1, 2): 3},
    ]  # fmt: skip
    for value in refused:
        with pytest.raises(NotSupportedError, match=r"model\.1"):
            save({"model": [0, value]}, str(tmp_path), 1)
    assert list(tmp_path.iterdir()) == []


def test_restoring_in_place(tmp_path: Path) -> None:
    state: Any = {"m": {"w": torch.randn(300, 70), "s": torch.randn(4)}, "a": np.arange(20_000), "step": 5}
    save(state, str(tmp_path), 1, options=OPTIONS)
    whole: Any = torch.zeros(600, 140)
    target: dict[str, Any] = {
        "m": {"w": whole[::2, ::2], "s": torch.zeros(4, requires_grad=True)},
        "a": np.zeros(20_000, int),
        "step": 0,
    }
    loaded_state: Any = load(str(tmp_path), into=target)
    assert (
        loaded_state["m"]["w"] is target["m"]["w"]
        and loaded_state["a"] is target["a"]
        and loaded_state["step"] == 5
    )
    assert same(
        {"m": {"w": whole[::2, ::2], "s": loaded_state["m"]["s"].detach()}, "a": target["a"], "step": 5},
        state,
    )
    assert not whole[1::2].any()


def test_a_target_that_does_not_fit_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    save({"a": torch.ones(3000), "b": torch.ones(3000)}, str(tmp_path), 1, options=OPTIONS)
    kept = torch.zeros(3000)
    read_only = np.zeros(3000, np.float32)
    read_only.flags.writeable = False
    wrong: list[Any] = [
        torch.zeros(2999),
        torch.zeros(3000, dtype=torch.float64),
        np.zeros(3000, np.float32),
        read_only,
        5,
    ]
    for other in wrong:
        with pytest.raises(CheckpointMismatchError, match="b"):
            load(str(tmp_path), into={"a": kept, "b": other})
    with pytest.raises(CheckpointMismatchError, match="no such place"):
        load(str(tmp_path), into={"a": kept})
    assert not kept.any()
    assert load(str(tmp_path), into={"a": kept}, only=["a"])["a"] is kept and kept.all()


def test_restoring_a_part(tmp_path: Path) -> None:
    state = {
        "model": {"w": torch.ones(5000), "b": torch.ones(3)},
        "optimizer": [torch.ones(9), torch.zeros(9)],
        "step": 5,
    }
    save(state, str(tmp_path), 1, options=OPTIONS)
    assert same(load(str(tmp_path), only=["model.*"]), {"model": state["model"]})
    loaded_state = load(str(tmp_path), only=["*.b", "optimizer.1", "step"])
    assert same(loaded_state, {"model": {"b": torch.ones(3)}, "optimizer": [None, torch.zeros(9)], "step": 5})
    with pytest.raises(CheckpointNotFoundError, match="nothing is named"):
        load(str(tmp_path), only=["nothing"])


def test_without_torch(tmp_path: Path) -> None:
    """The package saves, loads and shows arrays where torch is not installed, and says so of tensors."""
    save({"t": torch.ones(3000)}, str(tmp_path / "t"), 1)
    code = """
import sys
sys.modules["torch"] = None
import numpy
from headrace.checkpoint import load, save
save({"a": numpy.arange(9000)}, sys.argv[1], 1)
assert (load(sys.argv[1])["a"] == numpy.arange(9000)).all()
try:
    load(sys.argv[2])
except ImportError as error:
    assert "headrace[torch]" in str(error), error
else:
    raise SystemExit("no error")
"""
    words = [sys.executable, "-c", code, str(tmp_path / "a"), str(tmp_path / "t")]
    subprocess.run(words, check=True, timeout=110)
