"""Ranks of one host that load one model: `ranks.py HOW MODEL TRUTH COUNT`; every tensor is held against the truth.

HOW: plain (safetensors' own load_file on each file, through the mount), ours (load_model), url (MODEL is then
`SOCKET,headrace:///…`) or written (load_model of what lies in no cache). Prints one line of JSON a rank: its error, ""
for none, and how many tensors were right.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import torch  # before the fork: once for all ranks
from safetensors.torch import load_file

from headrace.integrations.safetensors import load_model


def load(how: str, model: str) -> dict[str, torch.Tensor]:
    if how == "plain":
        files = sorted(Path(model).glob("*.safetensors"))
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    if how == "url":
        socket, _, url = model.partition(",")
        return load_model(url, socket=socket)
    return load_model(model)


def lies_in_the_cache(model: str) -> bool:
    """The mappings are of cache files, and none goes through the mount."""
    maps = Path("/proc/self/maps").read_text()
    return "/cache/files/" in maps and f"{model}/" not in maps


def rank(how: str, model: str, truth: str) -> dict[str, object]:
    torch.set_num_threads(1)  # threads of the parent's are not here
    expected = load("plain", truth)
    tensors = load(how, model)
    if how in ("ours", "url") and not lies_in_the_cache(model):
        return {"error": "not mapped from the cache", "right": 0}
    if tensors.keys() != expected.keys():
        return {"error": f"other names: {sorted(tensors.keys() ^ expected.keys())}", "right": 0}
    right = sum(
        tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name])
        for name, tensor in tensors.items()
    )
    return {"error": "" if right == len(expected) else "wrong bytes", "right": right}


def main() -> None:
    how, model, truth, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                answer = rank(how, model, truth)
            except BaseException:  # noqa: BLE001 - told to the parent, and the rank ends
                answer = {"error": traceback.format_exc(), "right": 0}
            os.write(1, json.dumps(answer).encode() + b"\n")
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
