"""Tenants of a store in a real folder: limits under writers, and groups that change."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.base.errors import NoSpaceError
from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.base.priority import Priority
from headrace.plan.orders import PlannedStream
from headrace.plan.planned_files import PlannedFiles
from headrace.policy.dues import Entitlement
from headrace.policy.tenant_division import TenantDivision
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume

from .conftest import crash, fill, named

FILE_BYTES = 64 << 10
CAPACITY_BYTES = 32 << 20


class TenantsByName:
    """A store whose files belong to the tenant that their names begin with, as "a.1"."""

    def __init__(self, folder: Path) -> None:
        self.is_known = True
        self.division = TenantDivision(self._group_of, CAPACITY_BYTES)
        self.tenants: dict[FileId, str] = {}
        self.planned = PlannedFiles()
        volume = Volume(0, str(folder / "volume"), CAPACITY_BYTES, "ssd")
        rules = SpaceRules(divide=lambda _: self.division, planned=self.planned)
        self.store = Store.open(str(folder / "volume/index"), [volume], boot_id="boot-1", rules=rules)

    def _group_of(self, id: FileId) -> EvictionGroup:
        is_known = self.is_known and id in self.tenants
        return EvictionGroup(Priority.NORMAL, (self.tenants[id],)) if is_known else EvictionGroup()

    def add(self, tenant: str, number: int, size_bytes: int = FILE_BYTES) -> FileId:
        """Cache a small file of a tenant. Raises NoSpaceError."""
        entry = named(self.store, f"{tenant}.{number}".encode(), size_bytes)
        self.tenants[entry.id] = tenant
        self.store.complete_small(entry, bytes(size_bytes))
        return entry.id

    def bytes_on_disk(self, tenant: str) -> int:
        """Return the bytes of a tenant's cache files, by the index."""
        files = self.store.index.cached_files()
        return sum(cached.size_bytes for cached in files if self.tenants.get(cached.id) == tenant)

    def used_bytes(self, tenant: str) -> int:
        return self.store._files.accounts.groups.used_bytes(tenant)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TenantsByName]:
    tenants = TenantsByName(tmp_path)
    yield tenants
    crash(tenants.store)


def test_eight_writers_never_exceed_a_limit(cache: TenantsByName) -> None:
    limit_bytes = 40 * FILE_BYTES
    cache.division.update({"a": Entitlement(limit=limit_bytes)})
    for number in range(100):
        cache.add("b", number)
    entries = [named(cache.store, f"a.{number}".encode(), FILE_BYTES) for number in range(320)]
    cache.tenants.update((entry.id, "a") for entry in entries)

    def write(first: int) -> list[int]:
        used = []
        for entry in entries[first::8]:
            cache.store.complete_small(entry, bytes(FILE_BYTES))
            used.append(cache.used_bytes("a"))
        return used

    with ThreadPoolExecutor(8) as writers:
        most = max(max(used) for used in writers.map(write, range(8)))
    assert most <= limit_bytes
    assert cache.used_bytes("a") == cache.bytes_on_disk("a") > limit_bytes * 0.9
    assert cache.bytes_on_disk("b") == 100 * FILE_BYTES


def test_a_file_that_grows_stays_within_the_limit(cache: TenantsByName) -> None:
    size_bytes = 2 * BLOCK_SIZE_BYTES
    cache.division.update({"a": Entitlement(limit=size_bytes + (64 << 10))})
    for name in (b"a.1", b"a.2"):
        entry = named(cache.store, name, size_bytes)
        cache.tenants[entry.id] = "a"
        writer = cache.store.create(entry)
        for start, end in writer.missing(0, size_bytes):
            writer.write(start, bytes(end - start))
        cache.store.complete(writer)
    assert cache.bytes_on_disk("a") == size_bytes
    large = named(cache.store, b"a.3", 2 * size_bytes)
    cache.tenants[large.id] = "a"
    with pytest.raises(NoSpaceError, match="tenant a is at its limit"):
        cache.store.create(large)
    assert cache.bytes_on_disk("a") == size_bytes, "nothing is evicted for a file that can't fit"


def test_pinned_files_leave_no_room_within_a_limit(cache: TenantsByName) -> None:
    cache.division.update({"a": Entitlement(limit=2 * FILE_BYTES)})
    for number in range(2):
        assert cache.store.pin(cache.add("a", number), True)
    with pytest.raises(NoSpaceError, match="tenant a is at its limit"):
        cache.add("a", 3)
    assert cache.used_bytes("a") == 2 * FILE_BYTES
    cache.add("b", 1)


def test_a_lowered_limit_is_kept_in_steps(cache: TenantsByName) -> None:
    cache.division.update({"a": Entitlement(limit=CAPACITY_BYTES)})
    for number in range(200):
        cache.add("a", number)
    cache.division.update({"a": Entitlement(limit=20 * FILE_BYTES)})
    while cache.store.space.evict_if_needed():
        pass
    assert cache.bytes_on_disk("a") == cache.used_bytes("a") == 20 * FILE_BYTES


def test_groups_follow_a_change_of_policy(cache: TenantsByName) -> None:
    cache.is_known = False
    for number in range(600):
        cache.add("a" if number % 2 else "b", number)
    fill(cache.store, b"c", 3 * BLOCK_SIZE_BYTES)
    assert cache.used_bytes("a") == 0
    cache.is_known = True
    last: FileId | None = FileId(0)
    while last is not None:
        last = cache.store.space.regroup(last)
    for tenant in ("a", "b"):
        assert cache.used_bytes(tenant) == cache.bytes_on_disk(tenant)


def test_incomplete_files_count_to_a_guarantee(cache: TenantsByName) -> None:
    """A part that its reader left is evicted for others only if its tenant has more than its guarantee."""
    size_bytes = 2 * BLOCK_SIZE_BYTES
    cache.division.update({"a": Entitlement(guaranteed=4 * BLOCK_SIZE_BYTES)})
    entry = named(cache.store, b"a.part", size_bytes)
    cache.tenants[entry.id] = "a"
    writer = cache.store.create(entry)
    writer.write(0, bytes(BLOCK_SIZE_BYTES))
    writer.close()
    for number in range(600):
        cache.add("b", number)
    assert cache.store.index.cached(entry.id) is not None
    cache.division.update({})
    for number in range(600, 1200):
        cache.add("b", number)
    assert cache.store.index.cached(entry.id) is None


def test_plans_choose_within_the_tenant_that_loses(cache: TenantsByName) -> None:
    """A plan reads the files of both tenants. Tenant b is above its due, and loses those that it needs last."""
    ids = {tenant: [cache.add(tenant, number) for number in range(100)] for tenant in ("a", "b")}
    cache.division.update({"a": Entitlement(guaranteed=100 * FILE_BYTES)})
    soonest_first = [*ids["b"], *ids["a"]]
    numbers = array("I", (cache.planned.numbers.add(id) for id in soonest_first))
    cache.planned.orders.add("job", PlannedStream(numbers, 1))
    while not cache.planned.orders.build(4096) or not cache.planned.catch_up():
        pass
    space = cache.store.space
    with cache.store._lock:
        evicted = space._evict(cache.store.disks[0], 30 * FILE_BYTES, spare=0)
    assert set(evicted) == set(ids["b"][-30:])
    with cache.store._lock:
        evicted = space._evict(cache.store.disks[0], 200 * FILE_BYTES, spare=0)
    assert set(evicted) == set(ids["b"][:-30])
    assert cache.bytes_on_disk("a") == 100 * FILE_BYTES


def test_borrowed_files_have_no_tenant(cache: TenantsByName) -> None:
    cache.division.update({"a": Entitlement(limit=FILE_BYTES)})
    entry = named(cache.store, b"a.1", FILE_BYTES)
    cache.tenants[entry.id] = "a"
    for tenant_bytes, is_borrowed in ((0, True), (FILE_BYTES, False), (0, True), (FILE_BYTES, False)):
        if cache.store.index.cached(entry.id) is None:
            cache.store.complete_small_many([(entry, bytes(FILE_BYTES))], borrowed={entry.id})
        cache.store.set_borrowed(entry.id, borrowed=is_borrowed)
        assert cache.used_bytes("a") == tenant_bytes
    cache.add("a", 2)
    assert cache.used_bytes("a") == FILE_BYTES
    assert cache.store.index.cached(entry.id) is None


def test_a_restart_counts_the_same(cache: TenantsByName) -> None:
    for number in range(20):
        cache.add("a", number)
    used_bytes = cache.used_bytes("a")
    cache.store.close()
    volume = Volume(0, cache.store.disks[0].folder, CAPACITY_BYTES, "ssd")
    rules = SpaceRules(divide=lambda _: cache.division)
    store = Store.open(f"{volume.folder}/index", [volume], boot_id="boot-1", rules=rules)
    assert store._files.accounts.groups.used_bytes("a") == used_bytes == 20 * FILE_BYTES
    store.close()


def test_a_guarantee_holds_in_a_full_store(cache: TenantsByName) -> None:
    cache.division.update({"a": Entitlement(guaranteed=CAPACITY_BYTES // 4)})
    kept = [cache.add("a", number) for number in range(120)]
    for number in range(1000):
        cache.add("b", number)
        cache.store.space.evict_if_needed()
    assert all(cache.store.index.cached(id) is not None for id in kept)
    assert cache.bytes_on_disk("b") > 20 * FILE_BYTES, "of what the index leaves"
