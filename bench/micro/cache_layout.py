"""Compare how cache files lie on a disk: cold reads through a sealed overlay, with ids in directories by their low byte
or by their high bits, beside the plain directory.

    sudo python bench/micro/cache_layout.py FOLDER [--files 12000] [--size 112640] [--rounds 5] [--processes 1 2]
                                            [--sample 12000]

All are in one folder of the file system to be measured, and written in turn, file by file, as a cache is filled. Each
round drops the page cache before each way, and takes the ways in another order. Prints medians; the median of the
rounds' ratios to plain, which a noisy host changes less; and the requests to the disk for a file, which it does not
change at all where the disk is a loop device of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import stat
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Process
from pathlib import Path

from headrace.fuse.device import unmount
from headrace.seal.digest import digest_image
from headrace.seal.erofs import ImageEntry
from headrace.seal.mount import attach_view, open_image, open_view
from headrace.seal.writer import write_image

LAYOUTS: dict[str, Callable[[int], str]] = {
    "low byte": lambda id: f"/{id & 255:02x}/{id:012x}",
    "256 together": lambda id: f"/{id >> 8:x}/{id:012x}",
    "4096 together": lambda id: f"/{id >> 12:x}/{id:012x}",
}
FILES_PER_DIRECTORY = 1000


def name_of(number: int) -> str:
    return f"d{number // FILES_PER_DIRECTORY:03d}/f{number:06d}"


def fill(folder: Path, files: int, size_bytes: int) -> None:
    """Write each file once for each way, in a random order of the ways; nothing if a run before did."""
    if (folder / "plain").exists():
        return
    numbers = random.Random(1)
    for number in range(files):
        body = numbers.randbytes(size_bytes)
        paths = [folder / "plain" / name_of(number)]
        paths += [Path(f"{folder}/{layout}{place(number)}") for layout, place in LAYOUTS.items()]
        numbers.shuffle(paths)
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)


def entries(layout: str, files: int, size_bytes: int) -> Iterator[ImageEntry]:
    yield ImageEntry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 0, b"")
    for number in range(files):
        name = name_of(number).encode()
        if number % FILES_PER_DIRECTORY == 0:
            yield ImageEntry(name.partition(b"/")[0], stat.S_IFDIR | 0o755, 0, 0, 0, 0, b"")
        target = LAYOUTS[layout](number).encode()
        yield ImageEntry(name, stat.S_IFREG | 0o644, size_bytes, 0, 0, number, target)


def mount(folder: Path, layout: str, files: int, size_bytes: int) -> None:
    image, merged = (folder / f"{layout}.{part}" for part in ("image", "merged"))
    descriptor = os.open(image, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    write_image(entries(layout, files, size_bytes), descriptor)
    os.close(descriptor)
    merged.mkdir(exist_ok=True)
    source, target, data = (os.open(path, os.O_RDONLY) for path in (image, merged, folder / layout))
    metadata = open_image(source, digest_image(source))
    view = open_view(metadata, [data], source=layout)
    attach_view(view, target)
    for descriptor in (source, target, data, metadata, view):
        os.close(descriptor)


def read(root: Path, names: list[str]) -> None:
    buffer = bytearray(1 << 20)
    for name in names:
        descriptor = os.open(root / name, os.O_RDONLY)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def requests(folder: Path) -> int:
    """Return how many reads the disk of a folder has done."""
    device = os.stat(folder).st_dev
    return int(Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()[0])


def measure(root: Path, names: list[str], processes: int) -> float:
    """Return files/s of a cold read."""
    subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, check=True)
    readers = [Process(target=read, args=(root, names[k::processes])) for k in range(processes)]
    began = time.perf_counter()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return len(names) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=12_000)
    parser.add_argument("--size", type=int, default=112_640)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sample", type=int, help="files that a round reads; by default all")
    options = parser.parse_args()
    count = options.sample or options.files
    folder, numbers = options.folder.resolve(), random.Random(3)
    fill(folder, options.files, options.size)
    try:
        for layout in LAYOUTS:
            mount(folder, layout, options.files, options.size)
        roots = {"plain": folder / "plain"} | {layout: folder / f"{layout}.merged" for layout in LAYOUTS}
        for order in ("sorted", "shuffled"):
            for processes in options.processes:
                rates: dict[str, list[float]] = {name: [] for name in roots}
                counts: dict[str, list[int]] = {name: [] for name in roots}
                for _ in range(options.rounds):
                    first = numbers.randrange(options.files - count + 1)
                    chosen: Sequence[int] = range(first, first + count)
                    if order == "shuffled":
                        chosen = numbers.sample(range(options.files), count)
                    names = [name_of(number) for number in chosen]
                    for name in numbers.sample(list(roots), len(roots)):
                        before = requests(folder)
                        rates[name].append(measure(roots[name], names, processes))
                        counts[name].append(requests(folder) - before)
                for name, each in rates.items():
                    ratios = [rate / plain for rate, plain in zip(each, rates["plain"], strict=True)]
                    spread = f"{min(each):7,.0f} to {max(each):7,.0f}"
                    reads = statistics.median(counts[name]) / count
                    print(
                        f"{order:9}{processes} {name:14}{statistics.median(each):7,.0f} files/s ({spread})"
                        f"  {statistics.median(ratios):.2f} of plain ({min(ratios):.2f} to {max(ratios):.2f})"
                        f"  {reads:.3f} requests a file",
                        flush=True,
                    )
    finally:
        for layout in LAYOUTS:
            unmount(f"{folder}/{layout}.merged", detach=True)


if __name__ == "__main__":
    main()
