"""A model to be loaded, and the ranks that load it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests import fork_server
from tests.integration.cli.host import Host

RANKS = Path(__file__).with_name("ranks.py")
SHARDS, LAYERS, TENSOR = 3, 6, 1 << 20
LIMIT_S = 80


def write_model(folder: Path, *, seed: int = 0, shards: int = SHARDS) -> None:
    """Files of 24 MiB and their index."""
    random = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        tensors = {
            f"layers.{number}.{layer}": torch.randn(TENSOR, generator=random).view(1024, -1)
            for layer in range(LAYERS)
        }
        tensors[f"layers.{number}.bias"] = torch.randn(5 + number, generator=random).bfloat16()
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def run_ranks(host: Host, how: str, model: object, count: int, *, truth: Path | None = None) -> None:
    """So many ranks load it, and each finds it as it is at the origin. What other processes of the host run first
    (`run_first`) they don't."""
    command = [sys.executable, str(RANKS), how, str(model), str(truth or host.truth), str(count)]
    environment = {name: value for name, value in host.environment.items() if name != "PYTHONPATH"}
    done = fork_server.run_with_torch(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["error"] for answer in answers] == [""] * count, (answers, done.stderr)
    assert all(answer["right"] > LAYERS for answer in answers), answers
