"""torch.distributed.checkpoint over Headrace: real ranks, real gloo. What is compared is said in dcp_ranks.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.base.errors import CheckpointMismatchError
from headrace.checkpoint import folder as checkpoint_folder
from headrace.checkpoint import load, verify
from headrace.checkpoint.export import export
from headrace.checkpoint.posix_storage import PosixStorage
from tests.integration.gloo import run_ranks
from tests.lazy_module import lazy_module

torch = lazy_module("torch")
safetensors_torch = lazy_module("safetensors.torch")
pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the ranks leave; all of them ended well."""
    folder = tmp_path_factory.mktemp("dcp")
    run_ranks("tests.integration.checkpoint.dcp_ranks", folder, limit_s=180)
    return folder


def test_four_ranks_save_and_two_load(saved: Path) -> None:
    """FSDP (fully_shard), DDP, DTensors of several forms; async_save while training goes on; four ranks to two."""
    reports = [json.loads((saved / f"seen-{rank}.json").read_text()) for rank in range(4)]
    whole = {"fsdp trained on": True, "ddp": True, "tensors": True}
    assert reports == [{**whole, "loaded": True, "refused": True}] * 2 + [whole] * 2


def test_the_second_save_is_incremental_and_whole(saved: Path) -> None:
    place = PosixStorage(str(saved / "fsdp"))
    first, second = (checkpoint_folder.head(place, step) for step in (2, 3))
    assert (first.kind, first.ranks, first.full, second.full) == ("dcp", 4, True, False)
    assert first.written_bytes - second.written_bytes >= 400_000  # the tensor that no step changes
    for step in (2, 3):
        verify(place, step)
    for name in ("fsdp", "ddp", "tensors"):
        there = PosixStorage(str(saved / name))
        assert there.names("saves") == []
        heads = [checkpoint_folder.head(there, step) for step in checkpoint_folder.steps(there)]
        assert {pack for head in heads for pack in head.packs} == set(there.names("packs"))


def test_shards_are_put_together_by_export(saved: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "model.safetensors")
    done = export(PosixStorage(str(saved / "fsdp")), file, only=["model.*"])
    expected = torch.load(saved / "fsdp-3-0.pt", weights_only=False)["model"]
    tensors = safetensors_torch.load_file(file)
    assert done.tensors == len(expected) == 4
    for name, tensor in expected.items():
        assert torch.equal(tensors[f"model.{name}"], tensor)
    export(PosixStorage(str(saved / "tensors")), file)
    tensors = safetensors_torch.load_file(file)
    numbers = torch.arange(90 * 70).reshape(90, 70)
    assert torch.equal(tensors["columns"], numbers.double())
    assert torch.equal(tensors["rows"], numbers.bfloat16())
    assert torch.equal(tensors["few"], torch.arange(3))


def test_the_two_kinds_are_not_taken_for_each_other(saved: Path) -> None:
    with pytest.raises(CheckpointMismatchError, match="HeadraceReader"):
        load(str(saved / "ddp"))
