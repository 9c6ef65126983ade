"""Tokens of origins that are digests, and what they are digests of."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from headrace.base.errors import StoreError
from headrace.base.model import Version
from headrace.origin.digest import (
    PARTS_TRIED_MAX,
    Digest,
    digest_of,
    part_sizes,
    value_of_body,
    value_of_file,
)

MIB = 1 << 20
MD5 = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (f'"{MD5}"', Digest("md5", MD5)),
        (MD5.upper(), Digest("md5", MD5)),
        (f'"{MD5}-7"', Digest("md5", MD5, 7)),
        ("a" * 40, Digest("sha1", "a" * 40)),
        (f'"{"b" * 64}"', Digest("sha256", "b" * 64)),
        (f'W/"{MD5}"', None),
        (f'"{MD5}-0"', None),
        (f'"{MD5}-101"', None),
        (f'"{"b" * 64}-2"', None),
        (f'"{MD5[1:]}"', None),
        ('"0x8D4BCC2E4835CD0"', None),
        ("", None),
        (f'"{MD5}"\n', None),
    ],
)
def test_tokens(token: str, expected: Digest | None) -> None:
    assert digest_of(Version(100, 0, token)) == expected


def test_nothing_has_no_digest() -> None:
    assert digest_of(Version(0, 0, f'"{MD5}"')) is None


def test_sizes_of_parts() -> None:
    assert part_sizes(100, 0) == [0]
    assert part_sizes(100, 1) == [100]
    assert part_sizes(20 * MIB, 4) == [5 * MIB]
    assert part_sizes(20 * MIB, 3) == [8 * MIB]
    assert part_sizes(60 * MIB, 2, first=40 * MIB) == [40 * MIB, 32 * MIB, 50 * MIB]
    assert part_sizes(60 * MIB, 2, first=20 * MIB) == [32 * MIB, 50 * MIB]
    assert part_sizes(7 * MIB, 7) == []
    assert part_sizes(200_000 * MIB, 10_000) == [20 * MIB]  # as this program puts it
    assert all(len(part_sizes(size * MIB, 2)) <= PARTS_TRIED_MAX for size in range(1, 2000))


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_values_are_those_that_stores_name(tmp_path: Path, parts: int) -> None:
    body = os.urandom(2 * MIB + 5)
    (tmp_path / "f").write_bytes(body)
    part_bytes = (MIB if parts == 3 else len(body)) if parts else 0
    sums = [hashlib.md5(body[offset : offset + MIB]).digest() for offset in range(0, len(body), MIB)]
    whole = hashlib.md5(body)
    expected = {
        0: whole.hexdigest(),
        1: hashlib.md5(whole.digest()).hexdigest(),
        3: hashlib.md5(b"".join(sums)).hexdigest(),
    }[parts]
    digest = Digest("md5", expected, parts)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        assert value_of_file(fd, len(body), digest, part_bytes) == expected
        if parts < 2:
            assert value_of_body(body, digest) == expected
        with pytest.raises(StoreError, match="shorter"):
            value_of_file(fd, len(body) + 1, digest, 0)
    finally:
        os.close(fd)
