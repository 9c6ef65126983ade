"""Two processes of torch.distributed (gloo) that save to `headrace://` and load, with what torch brings for fsspec.

Run as `python -m tests.integration.door.door_ranks FOLDER URL`; each rank says by FOLDER/seen-<rank> that
all went well.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.device_mesh import init_device_mesh

from tests.integration.checkpoint.dcp_ranks import assert_same, bits, expect, tensors_of, whole
from tests.integration.gloo import fork_ranks

dcp: Any = torch.distributed.checkpoint
LIMIT = timedelta(seconds=90)
RANKS = 2


def no_sync_of_all() -> None:
    raise AssertionError("the whole machine was synced")


def save_and_load(url: str) -> None:
    mesh = init_device_mesh("cpu", (RANKS,))
    state = tensors_of(mesh)
    expected = whole(tensors_of(mesh))
    dcp.save(state, checkpoint_id=f"{url}/step-1")
    apart = dist.new_group()
    saving = dcp.async_save(state, checkpoint_id=f"{url}/step-2", process_group=apart)
    saving.result(timeout=LIMIT.total_seconds())
    for step in (1, 2):
        tensors = tensors_of(mesh, 0)
        dcp.load(tensors, checkpoint_id=f"{url}/step-{step}")
        assert_same(bits(whole(tensors)), bits(expected))
    other = tensors_of(mesh, 3)
    dcp.save(other, checkpoint_id=f"{url}/step-1")  # over what is there
    tensors = tensors_of(mesh, 0)
    dcp.load(tensors, checkpoint_id=f"{url}/step-1")
    assert_same(bits(whole(tensors)), bits(whole(tensors_of(mesh, 3))))
    expect("no such file", lambda: dcp.load({"x": torch.zeros(1)}, checkpoint_id=f"{url}/step-9"))


def rank_main(rank: int, folder: str, url: str) -> None:
    torch.set_num_threads(1)
    os.sync = no_sync_of_all
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS, timeout=LIMIT
    )
    save_and_load(url)
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"seen-{rank}").touch()


if __name__ == "__main__":
    sys.exit(fork_ranks(RANKS, rank_main, *sys.argv[1:]))
