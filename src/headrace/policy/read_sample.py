"""Sample the files that programs open, for the miss-ratio curves of a node and of its tenants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.base.model import FileId
from headrace.policy.id_hash import hash_of
from headrace.policy.miss_ratio import HASHES, MissRatioCurve

TENANT_FILES_MAX = 4096
TENANTS_MAX = 32
"""Tenants with a curve of their own: the first ones that read. Each takes up to 2 MB."""
TENANTS_FACTOR = 8
"""A tenant that reads an eighth of all files has as good a sample as if it were alone."""


class SampledRead(NamedTuple):
    """A read that was taken into the sample. threshold: the hash from which on none was taken."""

    id: FileId
    hashed: int
    threshold: int

    @property
    def weight(self) -> float:
        """Return how many reads it stands for."""
        return HASHES / self.threshold


class ReadSample:
    """The curve of all files, and one for each tenant. Reads pass in two steps, because most need no look at the file:
    `take` chooses by the hash of the id, and `record` is told the size and the tenant of those."""

    def __init__(self) -> None:
        self.whole = MissRatioCurve()
        self.tenants: dict[str, MissRatioCurve] = {}

    @property
    def threshold(self) -> int:
        """Return the hash from which on a read is not looked at."""
        return min(HASHES, self.whole.threshold * TENANTS_FACTOR)

    def take(self, ids: Sequence[FileId]) -> list[SampledRead]:
        """Choose the reads to look at."""
        threshold = self.threshold
        self.whole.reads += len(ids)
        hashes = ((id, hash_of(id)) for id in ids)
        return [SampledRead(id, hashed, threshold) for id, hashed in hashes if hashed < threshold]

    def record(self, read: SampledRead, size_bytes: int, tenant: str) -> None:
        """Record a read that `take` chose just before. tenant: "" for none."""
        self.whole.read_of_many(*read[:2], size_bytes, read.threshold)
        if not tenant:
            return
        curve = self.tenants.get(tenant)
        if curve is None:
            if len(self.tenants) >= TENANTS_MAX:
                return
            curve = self.tenants[tenant] = MissRatioCurve(TENANT_FILES_MAX)
        curve.reads += read.weight
        curve.read_of_many(*read[:2], size_bytes, read.threshold)
