"""One rank of a job: `rank.py FOLDER SUMS BATCH STEP_S EPOCHS GATE`. RANK and WORLD_SIZE are in the environment.

It reads its share of the files of a folder with torch's DistributedSampler, in this process. A step is a sleep. SUMS is
a file of JSON: name → size and CRC-32. Before each read it looks whether the reader's own disk has the file.

Prints `ready`, and a line of JSON after each epoch. Before each epoch it waits for a file, GATE and the epoch's number,
so that all ranks begin it at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from dataclasses import asdict, dataclass

from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from trainer import Files, identity

POLL_S = 0.01
CACHED = "user.headrace.cached"


@dataclass
class Epoch:
    """opens: of files. own: those that the reader's own disk had completely. wrong: those whose bytes are not the
    origin's. read_s: of all reads, which nothing hides here."""

    opens: int = 0
    own: int = 0
    wrong: int = 0
    read_s: float = 0.0


class CheckedFiles(Files):
    """The files of a folder. Each read is compared with what was put at the origin, and counted."""

    def __init__(self, folder: str, sums: dict[str, list[int]]) -> None:
        super().__init__(folder)
        self._sums = sums
        self.epoch = Epoch()

    def __getitem__(self, index: int) -> int:
        path = self.samples[index][0]
        self.epoch.own += os.getxattr(path, CACHED) == b"yes"
        start_s = time.perf_counter()
        with open(path, "rb") as file:
            data = file.read()
        self.epoch.read_s += time.perf_counter() - start_s
        self.epoch.opens += 1
        self.epoch.wrong += [len(data), zlib.crc32(data)] != self._sums[os.path.basename(path)]
        return len(data)


# as torchvision's data set, of which the hook knows the files; torchvision itself is not installed
CheckedFiles.__module__, CheckedFiles.__name__, CheckedFiles.__qualname__ = (
    Files.__module__,
    Files.__name__,
    Files.__qualname__,
)


def main() -> None:
    folder, sums, batch, step_s, epochs, gate = sys.argv[1:7]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with open(sums) as file:
        data_set = CheckedFiles(folder, json.load(file))
    sampler = DistributedSampler(data_set, num_replicas=world, rank=rank, shuffle=True, seed=7)
    loader = DataLoader(data_set, batch_size=int(batch), sampler=sampler, collate_fn=identity)
    print("ready", flush=True)
    for number in range(int(epochs)):
        while not os.path.exists(f"{gate}{number}"):
            time.sleep(POLL_S)
        sampler.set_epoch(number)
        data_set.epoch = Epoch()
        for _ in loader:
            time.sleep(float(step_s))
        print(json.dumps(asdict(data_set.epoch)), flush=True)


if __name__ == "__main__":
    main()
