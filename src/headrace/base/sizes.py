"""Parse and format sizes ("500GiB", "1.5T", "64MB"), and read those of files."""

from __future__ import annotations

import os
import re

from headrace.base.errors import UsageError

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STAT_BLOCK_BYTES = 512
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgtp]?)(i?b)?", re.IGNORECASE | re.ASCII)


def parse_size(text: str) -> int:
    """Parse a size to bytes. K, M, G, T, P and KiB … are powers of 1024; KB, MB … powers of 1000. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"size {text!r}", why="not a size", hint="for example 500GiB")
    number, letter, suffix = match.groups()
    base = 1000 if suffix and suffix.lower() == "b" else 1024
    return int(float(number) * base ** _POWERS[letter.lower()])


def show_size(size_bytes: float) -> str:
    """Format a size with three digits: "1.50 GiB"."""
    if size_bytes < 1024:
        return f"{int(size_bytes)} B"
    power = 1
    while size_bytes >= 1024 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    value = size_bytes / 1024**power
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {_UNITS[power]}"


def disk_bytes(status: os.stat_result) -> int:
    """Return the bytes that a file takes on its disk: less than its size if it has holes."""
    return status.st_blocks * _STAT_BLOCK_BYTES
