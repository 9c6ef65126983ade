"""Read streaming data sets, as programs of users do. Each process reads one epoch; but of WebDataset, two.

Arguments: the package, the directory of its shards, the number of workers, and a file. Each process adds lines to that:
what the plan hook reports at the beginning of an epoch, if it is there, and the files that are opened.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from typing import Any

import torch
from torch.utils.data import DataLoader

SAMPLES = 300
SHARD_SAMPLES = 20


def watch(log: str, folder: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(**fields: Any) -> None:
        os.write(descriptor, json.dumps({"pid": os.getpid(), **fields}).encode() + b"\n")

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder + "/"):
            add(opened=arguments[0])

    sys.addaudithook(audit)
    reporter = sys.modules.get("headrace_plan_hook.reporter")
    if reporter is not None:
        begin = reporter.ReportedStream.begin

        def noting(stream: Any, order: array[int]) -> None:
            begin(stream, order)
            add(learned=[stream.files[number] for number in order])

        reporter.ReportedStream.begin = noting


def numbers_of_webdataset(folder: str, workers: int) -> Any:
    import webdataset

    names = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    data = webdataset.WebDataset(
        names, shardshuffle=100, detshuffle=True, nodesplitter=webdataset.split_by_node, seed=5
    )
    return DataLoader(data.decode().map(number_of), batch_size=4, num_workers=workers)


def number_of(sample: dict[str, Any]) -> int:
    return int(sample["__key__"])


def declare_operators_of_torchvision() -> None:
    """Declare the operators that torchvision describes when it is imported. Its own library has them, but the one that
    package registries have needs a torch with CUDA."""
    if torch.version.cuda is None:
        for name in ("nms", "qnms"):
            schema = "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def numbers_of_streaming(folder: str, workers: int) -> Any:
    declare_operators_of_torchvision()
    from streaming import MDSWriter, StreamingDataset

    if not os.listdir(folder):
        with MDSWriter(out=folder, columns={"number": "int"}, size_limit=512) as writer:
            for number in range(SAMPLES):
                writer.write({"number": number})
    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=5, batch_size=4, num_canonical_nodes=1)
    return DataLoader(data, batch_size=4, num_workers=workers, collate_fn=joined)


def joined(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(sample["number"]) for sample in samples])


def numbers_of_litdata(folder: str, workers: int) -> Any:
    import litdata
    from litdata.streaming.writer import BinaryWriter

    if not os.listdir(folder):
        writer = BinaryWriter(folder, chunk_size=SHARD_SAMPLES)
        for number in range(SAMPLES):
            writer[number] = {"number": number}
        writer.done()
        writer.merge()
    data = litdata.StreamingDataset(folder, shuffle=True, seed=5, drop_last=False)
    return litdata.StreamingDataLoader(data, batch_size=4, num_workers=workers, collate_fn=joined)


def main() -> None:
    package, folder, workers, log = sys.argv[1:]
    torch.manual_seed(3)
    os.makedirs(folder, exist_ok=True)
    loader = {
        "webdataset": numbers_of_webdataset,
        "streaming": numbers_of_streaming,
        "litdata": numbers_of_litdata,
    }[package](folder, int(workers))
    watch(log, folder)
    epochs = 2 if package == "webdataset" or int(workers) else 1
    given = [batch.tolist() for _ in range(epochs) for batch in loader]
    print(json.dumps([given, torch.get_rng_state().sum().item()]))


if __name__ == "__main__":
    main()
