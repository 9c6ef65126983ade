"""The data: made once on the local disk (where it is also the plain contender), then put to the server."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import save_file

from .machine import run, tool
from .server import Server

MIB = 1 << 20
SMALL_BYTES = 110_000


@dataclass(frozen=True, slots=True)
class Data:
    """`root` holds `big/one.bin`, `model/model.safetensors` and `small/dNN/fNNNNN`."""

    root: str
    big_bytes: int
    model_bytes: int
    small_count: int
    names_path: str
    """Names of the small files relative to `root`, one a line, in the order of the listing."""

    BIG = "big/one.bin"
    MODEL = "model/model.safetensors"


def make(root: str, names_path: str, scale: float) -> Data:
    big_bytes = max(8, round(1024 * scale)) * MIB
    model_bytes = max(16, round(2048 * scale)) * MIB
    count = max(200, round(10_000 * scale))
    for folder in ("big", "model", "small"):
        os.makedirs(f"{root}/{folder}")
    with open(f"{root}/{Data.BIG}", "wb") as file:
        for _ in range(big_bytes // (8 * MIB)):
            file.write(os.urandom(8 * MIB))
    generator = np.random.default_rng(1)
    layers = 32 if model_bytes >= 512 * MIB else 4
    values = model_bytes // 4 // layers
    save_file(
        {f"layer{i:02d}": generator.random(values, dtype=np.float32) for i in range(layers)},
        f"{root}/{Data.MODEL}",
    )
    make_small(root, names_path, count)
    return Data(root, big_bytes, os.path.getsize(f"{root}/{Data.MODEL}"), count, names_path)


def make_small(root: str, names_path: str, count: int) -> None:
    """Files `small/dNN/fNNNNN` of SMALL_BYTES; their names, one a line."""
    block = os.urandom(8 * MIB)
    with open(names_path, "w") as names:
        for number in range(count):
            name = f"small/d{number // 1000:02d}/f{number:05d}"
            if number % 1000 == 0:
                os.makedirs(os.path.dirname(f"{root}/{name}"))
            offset = (number * 4099) % (len(block) - SMALL_BYTES)
            with open(f"{root}/{name}", "wb") as file:
                file.write(block[offset : offset + SMALL_BYTES])
            names.write(name + "\n")


def upload(data: Data, server: Server) -> None:
    for folder in ("big", "model", "small"):
        s5cmd(server, ["cp", f"{data.root}/{folder}/", f"s3://{server.bucket}/{folder}/"], timeout_s=300)


def s5cmd(server: Server, arguments: list[str], *, timeout_s: float) -> None:
    options = server.options()
    env = {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_REGION": "us-east-1",
    }
    command = [tool("s5cmd"), "--log", "error", "--endpoint-url", server.endpoint, *arguments]
    run(command, timeout_s=timeout_s, env=env)
