"""A job without a plan: opens files below a directory, and prints a digest of all bytes. Each argument after the
directory is a list of numbers of files; it waits for a line of standard input before the next list."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def main() -> None:
    directory, *lists = sys.argv[1:]
    paths = sorted(path for path in Path(directory).rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for numbers in lists:
        for number in numbers.split(","):
            with paths[int(number)].open("rb") as file:
                digest.update(file.read())
        print(digest.hexdigest(), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
