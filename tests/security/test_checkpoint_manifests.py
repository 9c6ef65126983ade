"""A checkpoint that somebody else wrote harms nobody who loads it (finding 7): memory, files, code."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptCheckpointError, HeadraceError, NotSupportedError
from headrace.checkpoint import SaveOptions, load, save, verify
from headrace.checkpoint.manifest import MAGIC, decode, digest
from tests.lazy_module import lazy_module

if TYPE_CHECKING:
    from headrace.integrations import torch_checkpoint
else:
    torch_checkpoint = lazy_module("headrace.integrations.torch_checkpoint")

STATE: dict[str, Any] = {
    "w": np.arange(4096, dtype=np.float32).reshape(64, 64),
    "t": torch.arange(4096, dtype=torch.float64),
    "s": np.float64(1.5),
    "list": [1, "two", b"3", None, (4.0, True)],
}
Evil = Callable[[dict[str, Any]], None]
"""Changes a manifest's head and body, as JSON."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    save(STATE, str(folder), step=1, options=SaveOptions(chunk_bytes=4096))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    for path in saved.rglob("*"):
        target = tmp_path / path.relative_to(saved)
        target.mkdir(parents=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    return tmp_path


def tamper(folder: Path, change: Evil) -> None:
    """Write a changed manifest with the right checksums, as whoever can write into the folder can."""
    path = folder / "manifests" / f"{1:012d}"
    manifest = decode(path.read_bytes(), "m")
    document = {"head": msgspec.to_builtins(manifest.head), "body": msgspec.to_builtins(manifest.body)}
    change(document)
    head, body = msgspec.json.encode(document["head"]), msgspec.json.encode(document["body"])
    first = b" ".join((MAGIC, digest(head).encode(), digest(body).encode()))
    path.write_bytes(b"\n".join((first, head, body, b"")))


def leaf(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    leaves: list[dict[str, Any]] = manifest["body"]["parts"][0]["leaves"]
    return next(row for row in leaves if row["name"] == name)


def setting(name: str, **values: Any) -> Evil:
    return lambda manifest: leaf(manifest, name).update(values)


def chunk(name: str, place: int, value: int) -> Evil:
    def change(manifest: dict[str, Any]) -> None:
        leaf(manifest, name)["chunks"][0][place] = value

    return change


def deep_tree(depth: int) -> Evil:
    return lambda manifest: part(tree=nested(depth))(manifest)


def part(**values: Any) -> Evil:
    return lambda manifest: manifest["body"]["parts"][0].update(values)


def packs_named(name: str) -> Evil:
    def change(manifest: dict[str, Any]) -> None:
        manifest["head"]["packs"] = [name]
        manifest["body"]["parts"][0]["packs"] = [name]

    return change


def nested(depth: int) -> Any:
    tree: Any = ["n"]
    for _ in range(depth):
        tree = ["l", [tree]]
    return tree


PACK, OFFSET, STORED, LENGTH, CODEC = 1, 2, 3, 4, 5
EVIL: dict[str, Evil] = {
    "pointers in an array": setting("w", dtype="|O", shape=[2048]),
    "pointers in a scalar": setting("s", dtype="|O"),
    "a record with pointers": setting("w", dtype="O,O", shape=[1024]),
    "a void": setting("w", dtype="|V4"),
    "a subarray": setting("w", dtype="(2,2)f4", shape=[1024]),
    "no dtype": setting("w", dtype="os.system"),
    "more items than bytes": setting("w", shape=[1 << 20, 1 << 20]),
    "fewer items than bytes": setting("w", shape=[1]),
    "a negative shape": setting("w", shape=[-64, -64]),
    "more bytes than items of torch": setting("t", dtype="float32"),
    "more items of torch than bytes": setting("t", shape=[1 << 40]),
    "an attribute of torch that is no dtype": setting("t", dtype="load"),
    "an unknown kind": setting("w", kind="pickle"),
    "a blob in a state": setting("w", kind="blob", dtype="", shape=[]),
    "a negative size": setting("w", size_bytes=-1),
    "more than all memory": setting("w", size_bytes=1 << 49),
    "inline bytes beside chunks": setting("w", inline="QUFB"),
    "no chunks": setting("w", chunks=[]),
    "a pack that is not there": chunk("w", PACK, 7),
    "a negative pack": chunk("w", PACK, -1),
    "before the pack": chunk("w", OFFSET, -4096),
    "behind the pack": chunk("w", OFFSET, 1 << 40),
    "stored otherwise than plain": chunk("w", STORED, 10),
    "a huge stored chunk": chunk("w", STORED, 1 << 48),
    "a huge chunk": chunk("w", LENGTH, 1 << 48),
    "a negative chunk": chunk("w", LENGTH, -4096),
    "a strange codec": chunk("w", CODEC, 1 << 40),
    "a negative codec": chunk("w", CODEC, -2),
    "a pack outside": packs_named("../../../../etc/passwd"),
    "an absolute pack": packs_named("/etc/passwd"),
    "a pack with a zero byte": packs_named("a\0b"),
    "packs without sizes": part(pack_bytes=[]),
    "a deep tree": deep_tree(300),
    "a very deep tree": deep_tree(30_000),
    "a leaf that is not there": part(tree=["a", 99]),
    "a negative leaf": part(tree=["a", -1]),
    "a tree that is a number": part(tree=7),
    "an empty tree": part(tree=[]),
    "a dict of pairs that are none": part(tree=["d", [[["s", "x"]]]]),
    "a number that is none": part(tree=["i", "x" * 10]),
    "base64 that is none": part(tree=["y", "\x00!"]),
    "a negative rank": part(rank=-1),
}


def test_the_untampered_checkpoint_is_loaded(folder: Path) -> None:
    tamper(folder, lambda manifest: None)
    state = load(str(folder))
    assert np.array_equal(state["w"], STATE["w"])
    assert torch.equal(state["t"], STATE["t"])
    assert (state["s"], state["list"]) == (STATE["s"], STATE["list"])
    assert verify(str(folder)) > 0


@pytest.mark.parametrize("evil", EVIL)
def test_a_manifest_that_lies_is_refused(folder: Path, evil: str) -> None:
    try:
        tamper(folder, EVIL[evil])
    except RecursionError:  # of the encoder: an attacker has another one
        path = folder / "manifests" / f"{1:012d}"
        body = b'{"parts":[{"rank":0,"tree":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
        head = path.read_bytes().splitlines()[1]
        first = b" ".join((MAGIC, digest(head).encode(), digest(body).encode()))
        path.write_bytes(b"\n".join((first, head, body, b"")))
    with pytest.raises(HeadraceError):
        load(str(folder))
    with pytest.raises(HeadraceError):
        load(str(folder), into=copy.deepcopy(STATE))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_manifest_is_loaded_or_refused(saved: Path, data: st.DataObject) -> None:
    """Any value of it is replaced by another one; what comes is a state, or an error of ours."""
    path = saved / "manifests" / f"{1:012d}"
    genuine = path.read_bytes()
    numbers = st.sampled_from([-1, 0, 1, 7, 4096, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1])
    words = st.sampled_from(
        ["", "torch", "numpy", "scalar", "blob", "|O", "<f8", "float8_e4m3fn", "../x", "\0"]
    )

    def mutate(value: Any) -> Any:
        if isinstance(value, dict) and value:
            name = data.draw(st.sampled_from(sorted(value)))
            return {**value, name: mutate(value[name])}
        if isinstance(value, list) and value and data.draw(st.integers(0, 4)):
            place = data.draw(st.integers(0, len(value) - 1))
            return [*value[:place], mutate(value[place]), *value[place + 1 :]]
        return data.draw(st.one_of(numbers, words, st.just([]), st.just(None), st.just({})))

    try:
        tamper(saved, lambda manifest: manifest.update(mutate(manifest)))
        try:
            load(str(saved))
        except HeadraceError:
            pass
    finally:
        path.write_bytes(genuine)


class Payload:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


def wanted_of(value: bytes) -> torch_checkpoint.WantedItem:
    memory = np.frombuffer(value, np.uint8)
    empty: Any = None
    leaf_of_value: Any = type("LeafOfValue", (), {"name": "extra"})
    return torch_checkpoint.WantedItem(empty, leaf_of_value, None, memory, 0, [])


def test_a_pickle_of_code_is_not_loaded(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(NotSupportedError, match="could run code"):
        wanted_of(pickle.dumps(Payload(trace), protocol=2)).check_pickle()
    assert not trace.exists()
    plain = io.BytesIO()
    torch.save({"lr": 0.1, "step": 3, "names": ["a"]}, plain)
    wanted_of(plain.getvalue()).check_pickle()


@pytest.mark.parametrize(
    ("field", "value"),
    [("dtype", "load"), ("dtype", "nothing"), ("layout", "float32"), ("memory_format", "Tensor")],
)
def test_metadata_names_no_other_attribute_of_torch(field: str, value: str) -> None:
    tensor = {
        "dtype": "float32",
        "layout": "strided",
        "memory_format": "contiguous_format",
        "requires_grad": False,
    }
    tensor |= {"pin_memory": False, "size": [2], "chunks": [[[0], [2]]], field: value}
    about = {"tensors": {"w": tensor}, "bytes": [], "planner": ["n"], "items": []}
    with pytest.raises(CorruptCheckpointError):
        torch_checkpoint.decode_metadata(about)


@pytest.mark.parametrize(
    "about",
    [None, {}, {"tensors": [], "bytes": [], "planner": ["n"], "items": []},
     {"tensors": {}, "bytes": ["x"], "planner": ["n"], "items": [["x", None, -1, 0]]},
     {"tensors": {}, "bytes": [], "planner": ["a"], "items": []}],
)  # fmt: skip
def test_metadata_of_another_form_is_refused(about: Any) -> None:
    with pytest.raises(CorruptCheckpointError):
        torch_checkpoint.decode_metadata(about)
