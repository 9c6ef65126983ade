"""Changes its working directory at random, and prints what is there in the end. Run as a program: SEED SECONDS.

Each file says what its bytes are: a part of one, or a mixture of two, shows. Prints a name and its content for each
file, as JSON, from what the calls answered, without a look at the directory.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time

DIRECTORIES = ("", "a/", "b/", "a/c/")
SIZES = (0, 10, 5000, 300_000)


def content(size_bytes: int, seed: int) -> bytes:
    return b"%d %d\n" % (size_bytes, seed) + random.Random(seed).randbytes(size_bytes)


def is_whole(data: bytes) -> bool:
    head = data.split(b"\n", 1)[0].split(b" ")
    return len(head) == 2 and data == content(int(head[0]), int(head[1]))


class Changes:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.files: dict[str, str] = {}
        self.directories: set[str] = {""}

    def step(self) -> None:
        choice = self._random.choice
        name = choice([d for d in DIRECTORIES if d in self.directories]) + f"f{self._random.randrange(8)}"
        work = choice(
            [
                self._write,
                self._write,
                self._replace,
                self._remove,
                self._rename,
                self._make,
                self._move,
                self._clear,
            ]
        )
        work(name)

    def _put(self, path: str) -> str:
        size_bytes, seed = self._random.choice(SIZES), self._random.randrange(1 << 30)
        with open(path, "wb") as file:
            file.write(content(size_bytes, seed))
        return f"{size_bytes} {seed}"

    def _write(self, name: str) -> None:
        self.files[name] = self._put(name)

    def _replace(self, name: str) -> None:
        text = self._put(name + ".new")
        os.rename(name + ".new", name)
        self.files[name] = text

    def _remove(self, name: str) -> None:
        if name in self.files:
            os.unlink(name)
            del self.files[name]

    def _rename(self, name: str) -> None:
        if self.files:
            source = self._random.choice(sorted(self.files))
            os.rename(source, name)
            self.files[name] = self.files.pop(source)

    def _make(self, _: str) -> None:
        for directory in DIRECTORIES[1:]:
            parent = directory.rstrip("/").rpartition("/")[0]
            if directory not in self.directories and (not parent or parent + "/" in self.directories):
                os.mkdir(directory)
                self.directories.add(directory)
                return

    def _move(self, _: str) -> None:
        """Rename a directory to the name of one that is missing."""
        if "b/" in self.directories or "a/" not in self.directories:
            return
        os.rename("a", "b")
        self._forget_below("b/")
        for name in [name for name in self.files if name.startswith("a/")]:
            self.files["b/" + name[2:]] = self.files.pop(name)
        self.directories -= {"a/", "a/c/"}
        self.directories.add("b/")
        if os.path.isdir("b/c"):
            for name in [name for name in self.files if name.startswith("b/c/")]:
                del self.files[name]
            shutil.rmtree("b/c")

    def _clear(self, _: str) -> None:
        directory = self._random.choice(DIRECTORIES[1:])
        if directory in self.directories and self._random.random() < 0.3:
            shutil.rmtree(directory)
            self._forget_below(directory)
            self.directories = {other for other in self.directories if not other.startswith(directory)}

    def _forget_below(self, directory: str) -> None:
        for name in [name for name in self.files if name.startswith(directory)]:
            del self.files[name]


def main() -> None:
    seed, end_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    changes = Changes(seed)
    pauses = random.Random(seed)
    while time.monotonic() < end_s:
        changes.step()
        time.sleep(pauses.choice((0.0, 0.0, 0.001, 0.01, 0.08)))
    files = {name: content(*map(int, text.split(" "))).hex() for name, text in changes.files.items()}
    directories = {name.rstrip("/"): "dir" for name in changes.directories if name}
    print(json.dumps(files | directories))


if __name__ == "__main__":
    main()
