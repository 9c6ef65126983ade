"""Run the read path over an origin that sends some bodies wrong."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

from headrace.base.deadline import Deadline
from headrace.base.model import Arrived, Version
from headrace.origin.memory import MemoryOrigin
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture


def md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


class SpoilingOrigin(MemoryOrigin):
    """share: of the bodies, how many come with a bit turned over. read: keys, one for each read."""

    def __init__(self) -> None:
        super().__init__("spoils")
        self.share = 0.0
        self.read: list[str] = []
        self.on_read: Callable[[str], None] = lambda _: None
        self.chance = random.Random(11)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        self.read.append(key)
        self.on_read(key)
        arrived = await super().read_range(key, start, end, version=version, deadline=deadline)
        if self.chance.random() >= self.share:
            return arrived
        body = bytearray(arrived.body)
        body[self.chance.randrange(len(body))] ^= 1 << self.chance.randrange(8)
        return Arrived(body)


class SpoiledReadPath(ReadPathFixture):
    def __init__(self, folder: Path, *, verify_origin: bool = True) -> None:
        self.spoils = SpoilingOrigin()
        super().__init__(folder, origin=self.spoils, capacity_bytes=256 * MIB, verify_origin=verify_origin)

    def hold(self, key: str, size_bytes: int, token: str = "") -> bytes:
        body = os.urandom(size_bytes)
        self.spoils.hold(key, body, token=token or f'"{md5(body)}"')
        return body

    async def loaded(self, key: str) -> bytes:
        entry = await self.entry(key)
        await self.reads.load(entry)
        return self.content(entry.id)

    def count(self, name: str) -> int:
        return self.reads.digests.statistics()[name]
