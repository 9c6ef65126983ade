"""Models out of plain folders: the tensors that safetensors' own loader gives; one clear error for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headrace.base.errors import (
    CorruptCheckpointError,
    HeadraceError,
    NodeUnavailableError,
    NotSupportedError,
    PathNotFoundError,
    UsageError,
)
from headrace.integrations.safetensors import iter_model, load_model

STATE = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "half": torch.randn(7).bfloat16(),
    "eighth": torch.randn(5).to(torch.float8_e4m3fn),
    "flags": torch.tensor([True, False, True]),
    "number": torch.tensor(3),
    "nothing": torch.empty(0, 4),
    "complex": torch.randn(3, dtype=torch.complex64),
}


def same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == expected.keys() and all(
        tensor.dtype == expected[name].dtype
        and tensor.shape == expected[name].shape
        and tensor.numpy(force=True).tobytes() == expected[name].numpy(force=True).tobytes()
        if tensor.dtype not in (torch.bfloat16, torch.float8_e4m3fn)
        else torch.equal(tensor.float(), expected[name].float())
        for name, tensor in tensors.items()
    )


def raw(header: object, data: bytes = b"", *, pad: bool = True) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 if pad else 0)
    return len(text).to_bytes(8, "little") + text + data


def test_a_file_and_a_folder_are_as_safetensors_loads_them(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "any.safetensors")
    expected = load_file(tmp_path / "any.safetensors")
    assert same(load_model(tmp_path / "any.safetensors"), expected)
    assert same(load_model(str(tmp_path)), expected)
    assert same(dict(iter_model(tmp_path)), expected)


def test_writing_to_a_tensor_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "any.safetensors")
    before = (tmp_path / "any.safetensors").read_bytes()
    tensors = load_model(tmp_path)
    tensors["matrix"] += 1
    assert torch.equal(tensors["matrix"], STATE["matrix"] + 1)
    assert (tmp_path / "any.safetensors").read_bytes() == before
    assert torch.equal(load_model(tmp_path)["matrix"], STATE["matrix"])


def test_items_that_begin_at_odd_places_are_read(tmp_path: Path) -> None:
    data = torch.randn(4, dtype=torch.float64).numpy().tobytes()
    header = {"x": {"dtype": "F64", "shape": [4], "data_offsets": [0, 32]}}
    while (len(raw(header, pad=False)) % 8) == 0:
        header["x" * 3] = header.pop(next(iter(header)))
    (tmp_path / "odd.safetensors").write_bytes(raw(header, data, pad=False))
    (tensor,) = load_model(tmp_path).values()
    assert tensor.numpy().tobytes() == data


def test_an_index_says_what_belongs_to_the_model(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "left.out": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "two.safetensors")
    save_file({"c": torch.zeros(3)}, tmp_path / "other.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    assert list(load_model(tmp_path)) == ["a", "b"]
    assert list(load_model(index)) == ["a", "b"]
    (tmp_path / "two.safetensors").unlink()
    assert list(load_model(tmp_path, only=["a"])) == ["a"]  # the other file is not looked at
    with pytest.raises(PathNotFoundError, match=r"two\.safetensors"):
        load_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {"z": "one.safetensors"}}))
    with pytest.raises(CorruptCheckpointError, match="lists z"):
        load_model(tmp_path)
    wrong: Any
    for wrong in ({"weight_map": {"a": "../one.safetensors"}}, {"weights": {}}, []):
        index.write_text(json.dumps(wrong))
        with pytest.raises(CorruptCheckpointError):
            load_model(tmp_path)


def test_without_an_index_the_single_file_counts_and_a_name_twice_is_an_error(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(2)}, tmp_path / "two.safetensors")
    assert sorted(load_model(tmp_path)) == ["a", "b"]
    save_file({"a": torch.ones(2)}, tmp_path / "two.safetensors")
    with pytest.raises(CorruptCheckpointError, match="another file"):
        load_model(tmp_path)
    save_file({"a": torch.ones(3)}, tmp_path / "model.safetensors")
    assert len(load_model(tmp_path)["a"]) == 3


TENSOR: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", CorruptCheckpointError),
        (b"1234567", CorruptCheckpointError),
        ((1 << 60).to_bytes(8, "little") + b"{}", CorruptCheckpointError),
        (raw([]), CorruptCheckpointError),
        (raw({"x": 1}), CorruptCheckpointError),
        (raw({"x": TENSOR}, bytes(7)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [3]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [-1, -2]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "data_offsets": [-8, 0]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "data_offsets": [8, 0]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [0, 10**4000]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [10**17] * 3000}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [10**17] * 100_000}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "shape": [10**15] * 64}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "data_offsets": [0, 10**4000]}}, bytes(8)), CorruptCheckpointError),
        (raw({"x": TENSOR, "y": TENSOR}, bytes(8)), CorruptCheckpointError),
        (raw({"x": TENSOR, "y": {**TENSOR, "data_offsets": [4, 12]}}, bytes(12)), CorruptCheckpointError),
        (raw({"x": {**TENSOR, "dtype": "F6_E2M3"}}, bytes(8)), NotSupportedError),
    ],
)
def test_what_is_no_safetensors_file_is_one_clear_error(
    tmp_path: Path, body: bytes, error: type[HeadraceError]
) -> None:
    (tmp_path / "x.safetensors").write_bytes(body)
    with pytest.raises(error, match=r"x\.safetensors"):
        load_model(tmp_path)


def test_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match="nowhere"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(PathNotFoundError, match=r"no \*\.safetensors"):
        load_model(tmp_path)
    with pytest.raises(UsageError, match="three slashes"):
        load_model("headrace://models/llama")
    with pytest.raises(NodeUnavailableError):
        load_model("headrace:///models", socket=str(tmp_path / "no.sock"))


def test_a_header_of_too_many_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.integrations.safetensors.TENSORS_MAX", 1)
    empty = {**TENSOR, "shape": [0], "data_offsets": [0, 0]}
    (tmp_path / "x.safetensors").write_bytes(raw({"x": empty, "__metadata__": {"a": "b"}}))
    assert load_model(tmp_path)["x"].shape == (0,)
    (tmp_path / "x.safetensors").write_bytes(raw({"x": empty, "y": empty}))
    with pytest.raises(CorruptCheckpointError, match="2 tensors"):
        load_model(tmp_path)


def test_an_index_with_a_name_that_no_file_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a\0b"}}))
    with pytest.raises(CorruptCheckpointError, match="index"):
        load_model(tmp_path)
