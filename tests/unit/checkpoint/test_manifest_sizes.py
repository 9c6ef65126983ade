"""Manifests that are larger than any that is saved: nobody reads all of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import CheckpointFailedError, CorruptCheckpointError
from headrace.checkpoint import PosixStorage, Retention, Saver, load, save
from headrace.checkpoint import commit as checkpoint_commit
from headrace.checkpoint import folder as checkpoint_folder
from headrace.checkpoint.manifest import HEAD_BYTES_FIRST, HEAD_BYTES_MAX, MANIFEST_BYTES_MAX, decode_head
from headrace.checkpoint.part import newest_base
from headrace.checkpoint.prune import prune

STATE = {"w": np.arange(1000)}
HEX = b"0" * 32
SPARSE_BYTES = 6 << 30


class CountingStorage(PosixStorage):
    """Fails for a read of more bytes than a manifest has."""

    def read(self, name: str, **limits: Any) -> bytes:
        data = super().read(name, **limits)
        assert len(data) <= HEAD_BYTES_MAX, f"{name}: {len(data)} bytes read"
        return data


def sparse(path: Path, first: bytes, size_bytes: int = SPARSE_BYTES) -> None:
    path.write_bytes(first)
    os.truncate(path, size_bytes)


@pytest.fixture
def place(tmp_path: Path) -> CountingStorage:
    place = CountingStorage(str(tmp_path))
    save(STATE, place, 1)
    return place


@pytest.mark.expected_warnings("headrace.checkpoint")
@pytest.mark.parametrize("first", [b"HRCKPT1 ", b"HRCKPT1 " + HEX + b" " + HEX + b"\n{"], ids=["bad", "good"])
def test_a_sparse_manifest_is_not_read(first: bytes, place: CountingStorage, tmp_path: Path) -> None:
    sparse(tmp_path / "manifests" / f"{9:012d}", first)
    with pytest.raises(CorruptCheckpointError):
        checkpoint_folder.head(place, 9)
    with pytest.raises(CorruptCheckpointError, match=str(MANIFEST_BYTES_MAX)):
        load(place)
    assert newest_base(place, 0) is None
    assert prune(place, Retention()).corrupt == [9]


def test_a_sparse_claim_is_not_read(place: CountingStorage, tmp_path: Path) -> None:
    claim = place.claim("saves/c.claim", b"[]")
    try:
        folder = tmp_path / "saves" / f"{9:012d}-a-0"
        folder.mkdir()
        os.rename(tmp_path / "saves" / "c.claim", folder / "0.claim")
        os.truncate(folder / "0.claim", SPARSE_BYTES)
        assert prune(place, Retention()).saves == []
    finally:
        claim.release()


def test_a_head_is_read_on_only_after_a_first_line() -> None:
    assert decode_head(b"HRCKPT1 " + HEX + b" " + HEX + b"\n{" + bytes(HEAD_BYTES_FIRST), "m") is None
    assert decode_head(b"HRCK", "m") is None
    for first in (b"HRCKPT1 ", b"HRCKPT1 " + HEX + b"\n", b"HRCKPT1 " + HEX + b" " + HEX):
        with pytest.raises(CorruptCheckpointError):
            decode_head(first + bytes(HEAD_BYTES_FIRST), "m")


def test_a_long_head_is_read(place: CountingStorage) -> None:
    with Saver(place) as saver:
        saver.save(STATE, 2, metadata={"text": "x" * 3 * HEAD_BYTES_FIRST}).wait()
    assert len(checkpoint_folder.head(place, 2).metadata["text"]) == 3 * HEAD_BYTES_FIRST


@pytest.mark.expected_warnings("headrace.checkpoint")
@pytest.mark.parametrize("limit", ["HEAD_BYTES_MAX", "MANIFEST_BYTES_MAX"])
def test_what_no_load_accepts_is_not_saved(
    limit: str, place: CountingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_commit, limit, 300)
    with Saver(place) as saver, pytest.raises(CheckpointFailedError, match="a load accepts"):
        saver.save(STATE, 2, metadata={"text": "x" * 300}).wait()
    assert checkpoint_folder.steps(place) == [1]
