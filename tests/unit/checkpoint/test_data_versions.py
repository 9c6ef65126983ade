"""Checkpoints that name the sealed versions of their data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.base.errors import CorruptCheckpointError, UsageError
from headrace.checkpoint import Saver, save
from headrace.checkpoint.folder import manifest
from headrace.checkpoint.manifest_check import check_head
from headrace.checkpoint.open_storage import storage_at

ID = "0123456789abcdef" * 4


def state() -> dict[str, Any]:
    return {"weights": np.arange(10.0)}


def test_the_versions_are_in_the_manifest(tmp_path: Path) -> None:
    save(state(), str(tmp_path), 1, data={"imagenet@3": ID, "labels@1": "0" * 64})
    save(state(), str(tmp_path), 2)
    storage = storage_at(str(tmp_path))
    assert manifest(storage, 1).head.data == {"imagenet@3": ID, "labels@1": "0" * 64}
    assert manifest(storage, 2).head.data == {}


@pytest.mark.parametrize(
    "data", [{"imagenet": ID}, {"imagenet@0": ID}, {"../x@1": ID}, {"a@1": "short"}, {"a@1": ID + "\n"}]
)
def test_what_is_no_version_is_refused_before_the_save(tmp_path: Path, data: dict[str, str]) -> None:
    with Saver(str(tmp_path)) as saver, pytest.raises(UsageError, match="data of a checkpoint"):
        saver.save(state(), 1, data=data)
    assert not list(tmp_path.rglob("*.json"))


def test_a_forged_manifest_is_refused(tmp_path: Path) -> None:
    save(state(), str(tmp_path), 1)
    head = manifest(storage_at(str(tmp_path)), 1).head
    for data in ({"a\n@1": ID}, {"a@1": "\x1b[2J"}, {f"a@{number}": ID for number in range(1, 200)}):
        with pytest.raises(CorruptCheckpointError):
            check_head(msgspec.structs.replace(head, data=data), "forged")


def test_torch_names_them_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    from headrace.integrations.torch_checkpoint import HeadraceWriter

    writer = HeadraceWriter(str(tmp_path), data={"imagenet@3": ID})
    dcp.save({"weights": torch.arange(5.0)}, storage_writer=writer, checkpoint_id="7", no_dist=True)
    assert manifest(storage_at(str(tmp_path)), 7).head.data == {"imagenet@3": ID}
