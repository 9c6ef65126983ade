"""The loaders of other packages: what the plan hook learns is what they give, and they give the same without the hook.

Each program trains an epoch, and goes on from the middle of one, alone and as two ranks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace.hook

pytestmark = pytest.mark.timeout(300)

PROGRAM = Path(__file__).with_name("provided.py")
SITE = Path(headrace.hook.__file__).with_name("site")
NOT_THIS_EPOCH = "own sampler 0: resumed"
"""The run whose order can't be known: the sampler drew random numbers before it was asked, and can't be copied."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def run_ranks(
    package: str, ranks: int, *, is_planned: bool, python: str = sys.executable
) -> list[dict[str, Any]]:
    """Run the program as some ranks, and return what they print. The plan's node is away: only the hook is tested."""
    planned = {"HEADRACE_PLAN_SOCKET": "/no/such/node", "PYTHONPATH": str(SITE)} if is_planned else {}
    group = (
        {}
        if ranks == 1
        else {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": str(ranks)}
    )
    group |= {"MASTER_PORT": str(free_port()), "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [python, str(PROGRAM), package],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | planned
            | group
            | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]
    printed = []
    for process in processes:
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
        printed.append(json.loads(output.splitlines()[-1]))
    return printed


def check_runs(planned: dict[str, Any], plain: dict[str, Any]) -> None:
    assert planned["states"] == plain["states"]
    for name, run in planned["runs"].items():
        given = run["given"]
        assert given == plain["runs"][name]["given"], name
        if name == NOT_THIS_EPOCH:
            assert run["learned"] == []
        elif name.endswith("begun"):  # the program left this epoch
            assert run["learned"][: len(given)] == given, name
        else:
            assert run["learned"] == given, name


@pytest.mark.parametrize(("package", "ranks"), [("torchdata", 1), ("accelerate", 1), ("accelerate", 2)])
def test_the_learned_order_is_what_the_loader_gives(package: str, ranks: int) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'headrace[plan-providers]'")
    everything = zip(
        run_ranks(package, ranks, is_planned=True), run_ranks(package, ranks, is_planned=False), strict=True
    )
    for planned, plain in everything:
        check_runs(planned, plain)
        if package == "accelerate":
            runs = planned["runs"]
            assert runs["seedable True: epoch 0"]["later"] == runs["seedable True: epoch 1"]["given"]
