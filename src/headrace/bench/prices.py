"""Compute the cost of reads, from a table that users can edit: prices.toml."""

from __future__ import annotations

import tomllib
from importlib import resources

import msgspec

from headrace.base.decoding import convert
from headrace.base.errors import UsageError
from headrace.bench.counting import StoreCounts

DEFAULT = "aws-s3-same-region"


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hold prices in US dollars. get, list: per 1,000 requests. out: per GiB."""

    get: float
    list: float
    out: float
    note: str = ""

    def of(self, counts: StoreCounts) -> float:
        """Return the cost of the requests. HEAD is priced as GET, all others as LIST."""
        requests = (counts.gets + counts.heads) * self.get + (counts.lists + counts.others) * self.list
        return requests / 1000 + counts.bytes_out / 2**30 * self.out


def read(path: str = "") -> dict[str, Price]:
    """Return the table of a file, or the built-in one. Raises UsageError."""
    try:
        if path:
            with open(path, "rb") as source:
                text = source.read().decode()
        else:
            text = resources.files("headrace.bench").joinpath("prices.toml").read_text()
        return convert(tomllib.loads(text), dict[str, Price])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"prices {path or 'prices.toml'}", why=str(error)) from error


def price(name: str, path: str = "") -> Price:
    table = read(path)
    if name not in table:
        raise UsageError(f"--price {name}", why="the price table has no such entry", hint=", ".join(table))
    return table[name]
