"""Four processes of torch.distributed (gloo) that save, then two of them that load what four have saved.

Run as `python -m tests.integration.checkpoint.dcp_ranks FOLDER`; torch is imported once, then the ranks are forked.
Each rank writes what it saw to FOLDER/seen-<rank>.json; status 0 means that every comparison in here held.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from headrace.checkpoint import SaveOptions
from headrace.integrations.torch_checkpoint import HeadraceReader, HeadraceWriter
from tests.integration.gloo import fork_ranks

dcp: Any = torch.distributed.checkpoint
OPTIONS = SaveOptions(chunk_bytes=4096, slot_bytes=65536, budget_bytes=1 << 20, timeout_s=120)
LIMIT = timedelta(seconds=90)


def model_of(seed: int) -> torch.nn.Module:
    """Sizes that four do not divide."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(67, 131), torch.nn.ReLU(), torch.nn.Linear(131, 53))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """The same on every rank: what is compared afterwards must not hang on how many ranks there are."""
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 67)).pow(2).mean().backward()
        optimizer.step()


def whole(state: Any) -> Any:
    """Sharded tensors gathered, as plain ones."""
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    if isinstance(state, DTensor):
        return state.full_tensor().clone()
    return state.detach().clone() if isinstance(state, torch.Tensor) else state


def assert_same(value: Any, other: Any, path: str = "") -> None:
    if isinstance(value, dict):
        assert set(value) == set(other), path
        for key in value:
            assert_same(value[key], other[key], f"{path}.{key}")
    elif isinstance(value, torch.Tensor):
        assert torch.equal(value, other), path
    else:
        assert value == other, path


def states(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save_fsdp(folder: str, checks: dict[str, Any]) -> None:
    """Two saves by one writer, the second incremental and asynchronous, while training goes on."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model: Any = fully_shard(model_of(1), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, 2)
    writer = HeadraceWriter(f"{folder}/fsdp", options=OPTIONS)
    state = {
        **states(model, optimizer),
        "steady": distribute_tensor(torch.arange(100_000.0), mesh, [Shard(0)]),
    }
    dcp.save(state, checkpoint_id="2", storage_writer=writer)
    torch.save(whole(state), f"{folder}/fsdp-2-{dist.get_rank()}.pt")
    train(model, optimizer, 1)
    state = {**states(model, optimizer), "steady": state["steady"], "epoch": 7}
    before = whole(state)
    torch.save(before, f"{folder}/fsdp-3-{dist.get_rank()}.pt")
    apart = dist.new_group()  # torch saves in a thread: its messages must not mix with those of the training
    saving = dcp.async_save(state, checkpoint_id="3", storage_writer=writer, process_group=apart)
    train(model, optimizer, 1)  # changes what is being saved
    saving.result(timeout=LIMIT.total_seconds())
    after = whole(model.state_dict())
    checks["fsdp trained on"] = not torch.equal(after["0.weight"], before["model"]["0.weight"])


def save_ddp(folder: str, checks: dict[str, Any]) -> None:
    model = DistributedDataParallel(model_of(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    train(model, optimizer, 2)
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    writer = HeadraceWriter(f"{folder}/ddp", options=OPTIONS)
    dcp.save(state, checkpoint_id=f"{folder}/ddp/step-5", storage_writer=writer)
    torch.save(state, f"{folder}/ddp-5-{dist.get_rank()}.pt")
    checks["ddp"] = True


def save_tensors(folder: str, checks: dict[str, Any]) -> None:
    """Dtypes and forms of sharding that the models have not."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    dcp.save(
        tensors_of(mesh),
        checkpoint_id="1",
        storage_writer=HeadraceWriter(f"{folder}/tensors", options=OPTIONS),
    )
    checks["tensors"] = True


def tensors_of(mesh: Any, factor: int = 1) -> dict[str, Any]:
    numbers = torch.arange(90 * 70).reshape(90, 70) * factor
    return {
        "rows": distribute_tensor(numbers.to(torch.bfloat16), mesh, [Shard(0)]),
        "columns": distribute_tensor(numbers.to(torch.float64), mesh, [Shard(1)]),
        "everywhere": distribute_tensor(numbers, mesh, [Replicate()]),
        "few": distribute_tensor(torch.arange(3) * factor, mesh, [Shard(0)]),  # some ranks have none
        "plain": torch.tensor(3.5 * factor),
        "eighths": (numbers % 8).to(torch.float8_e4m3fn)
        if factor
        else torch.zeros(90, 70).to(torch.float8_e4m3fn),
        "complex": torch.complex(numbers.float(), -numbers.float()),
        "list": [1 * factor, {"a": "b" * factor}],
    }


def load_all(folder: str, checks: dict[str, Any]) -> None:
    """By another number of ranks than have saved."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for step in (2, 3):
        model: Any = fully_shard(model_of(9), mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 1)
        state = {
            **states(model, optimizer),
            "steady": distribute_tensor(torch.zeros(100_000), mesh, [Shard(0)]),
        }
        if step == 3:
            state["epoch"] = 0
        reader = HeadraceReader(f"{folder}/fsdp", step=2) if step == 2 else HeadraceReader(f"{folder}/fsdp")
        dcp.load(state, storage_reader=reader)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        expected = torch.load(f"{folder}/fsdp-{step}-{dist.get_rank()}.pt", weights_only=False)
        assert_same(whole({**state, **states(model, optimizer)}), expected)
    plain = model_of(9)
    descent = torch.optim.SGD(plain.parameters(), lr=1e-2, momentum=0.9)
    train(plain, descent, 1)
    state = {"model": plain.state_dict(), "optimizer": descent.state_dict()}
    dcp.load(state, checkpoint_id="5", storage_reader=HeadraceReader(f"{folder}/ddp"))
    assert_same(state, torch.load(f"{folder}/ddp-5-{dist.get_rank()}.pt", weights_only=False))
    expected, loaded = tensors_of(mesh), tensors_of(mesh, 0)
    dcp.load(loaded, storage_reader=HeadraceReader(f"{folder}/tensors"))
    assert_same(bits(whole(loaded)), bits(whole(expected)))
    turned = {"rows": distribute_tensor(torch.zeros(90, 70, dtype=torch.bfloat16), mesh, [Shard(1)])}
    dcp.load(turned, storage_reader=HeadraceReader(f"{folder}/tensors"))
    assert torch.equal(turned["rows"].full_tensor(), expected["rows"].full_tensor())
    checks["loaded"] = True


def bits(state: dict[str, Any]) -> dict[str, Any]:
    """float8 has no comparison."""
    return {key: tensor.view(torch.uint8) if key == "eighths" else tensor for key, tensor in state.items()}


def refuse(folder: str, checks: dict[str, Any]) -> None:
    """Check that every rank says what is wrong."""
    nothing, complex_ = HeadraceReader(f"{folder}/none"), HeadraceReader(f"{folder}/tensors")
    expect("no checkpoint", lambda: dcp.load({"x": torch.zeros(1)}, storage_reader=nothing))
    expect("saved as complex64", lambda: dcp.load({"complex": torch.zeros(90, 70)}, storage_reader=complex_))
    expect("it names no step", lambda: dcp.save({}, storage_writer=HeadraceWriter(f"{folder}/x")))
    checks["refused"] = True


def expect(word: str, call: Callable[[], None]) -> None:
    said = ""
    try:
        call()
    except dcp.CheckpointException as error:
        said = str(error)
    assert word in said, said


def rank_main(rank: int, folder: str) -> None:
    checks: dict[str, Any] = {}
    torch.set_num_threads(1)
    for ranks, work in ((4, (save_fsdp, save_ddp, save_tensors)), (2, (load_all, refuse))):
        if rank >= ranks:
            break
        store = f"file://{folder}/meeting-{ranks}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=LIMIT)
        for step in work:
            step(folder, checks)
        dist.barrier()
        dist.destroy_process_group()
    Path(folder, f"seen-{rank}.json").write_text(json.dumps(checks))


if __name__ == "__main__":
    sys.exit(fork_ranks(4, rank_main, *sys.argv[1:]))
