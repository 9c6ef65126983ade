"""The hit path: what a client reads without its node, and what it leaves to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, FileId
from headrace.client.local import LocalCache
from headrace.store.index import Index
from headrace.store.volume import data_path
from tests.unit.client.conftest import Cached

WHOLE = [b"/whole", b"/dir/inner", b"/empty", b"/large"]


@pytest.fixture
def touched() -> list[FileId]:
    return []


@pytest.fixture
def local(cached: Cached, touched: list[FileId]) -> Iterator[LocalCache]:
    cache = LocalCache(cached.welcome(), touched.append)
    yield cache
    cache.close()


def place(cached: Cached, path: bytes) -> tuple[FileId, bytes]:
    directory, _, name = path.rpartition(b"/")
    return cached.directories[directory], name


@pytest.mark.parametrize("path", WHOLE)
def test_each_way_to_a_complete_file_gives_the_same_bytes(
    cached: Cached, local: LocalCache, touched: list[FileId], path: bytes
) -> None:
    parent, name = place(cached, path)
    id, data = cached.ids[path], cached.files[path]
    fast = local.open_whole(parent, name)
    assert fast is not None and fast[1] == len(data)
    whole = local.open_whole_entry(parent, name)
    assert whole is not None and whole.entry == local.index.entry(id)
    complete_path = local.complete_path(id)
    assert complete_path is not None
    reader = local.reader(id)
    assert reader is not None and reader.complete and reader.present(0, len(data))
    for fd in (fast[0], whole.fd, reader.fd):
        assert os.pread(fd, len(data) + 1, 0) == data
    assert Path(complete_path).read_bytes() == data
    assert touched == [id, id], "what is opened is used; what is looked at is not"
    assert local.present_share(id) == 1.0
    for fd in (fast[0], whole.fd):
        os.close(fd)
    reader.close()


def test_no_fast_way_gives_a_file_with_holes(cached: Cached, local: LocalCache) -> None:
    id = cached.ids[b"/partial"]
    assert local.open_whole(ROOT_ID, b"partial") is None
    assert local.open_whole_entry(ROOT_ID, b"partial") is None
    assert local.complete_path(id) is None
    reader = local.reader(id)
    assert reader is not None and not reader.complete
    assert reader.present(0, BLOCK_SIZE_BYTES) and not reader.present(0, BLOCK_SIZE_BYTES + 1)
    assert local.present_share(id) == 0.5
    reader.close()


@pytest.mark.parametrize("name", [b"missing", b"dir", b"", b"x" * 600, b"whole\0"])
def test_no_fast_way_gives_what_is_no_file(local: LocalCache, name: bytes) -> None:
    assert local.open_whole(ROOT_ID, name) is None
    assert local.open_whole_entry(ROOT_ID, name) is None


def test_an_unknown_id_has_nothing(local: LocalCache) -> None:
    id = FileId(99_999)
    assert (local.complete_path(id), local.reader(id), local.index.entry(id), local.index.cached(id)) == (
        None,
    ) * 4
    assert local.present_share(id) == 0.0


def test_an_evicted_file_is_left_to_the_node(own_cached: Cached, touched: list[FileId]) -> None:
    """Its record goes first. A client that read it before finds no file."""
    id, local = own_cached.ids[b"/whole"], LocalCache(own_cached.welcome(), touched.append)
    Path(data_path(own_cached.volume, id)).unlink()
    assert local.open_whole(ROOT_ID, b"whole") is None
    assert local.open_whole_entry(ROOT_ID, b"whole") is None
    assert local.reader(id) is None
    assert touched == []
    local.close()


def test_a_listing_that_is_not_fresh_is_left_to_the_node(own_cached: Cached) -> None:
    index = Index.open(f"{own_cached.volume}/index", writable=True)
    index.names.set_fresh_until(ROOT_ID, 1)
    local = LocalCache(own_cached.welcome(), lambda id: None, index)
    assert local.fresh_for_s(ROOT_ID) == 0
    assert local.open_whole(ROOT_ID, b"whole") is None
    inner = local.open_whole(own_cached.directories[b"/dir"], b"inner")
    assert inner is not None
    os.close(inner[0])
    local.close()


def test_a_file_that_was_not_verified_since_a_power_loss_is_left_to_the_node(own_cached: Cached) -> None:
    index = Index.open(f"{own_cached.volume}/index", writable=True)
    local = LocalCache(own_cached.welcome(), lambda id: None, index)
    for path in (b"/whole", b"/partial"):
        id = own_cached.ids[path]
        record = index.cached(id)
        assert record is not None
        index.put_cached(replace(record, unverified=True))
        assert local.open_whole(ROOT_ID, path[1:]) is None
        assert local.complete_path(id) is None
        assert local.reader(id) is None
        assert local.present_share(id) == 0.0
    local.close()


def test_a_file_on_a_disk_that_the_client_does_not_know_is_left_to_the_node(cached: Cached) -> None:
    local = LocalCache(replace(cached.welcome(), volumes=[]), lambda id: None)
    assert local.open_whole(ROOT_ID, b"whole") is None
    assert local.open_whole_entry(ROOT_ID, b"whole") is None
    assert local.complete_path(cached.ids[b"/whole"]) is None
    assert local.reader(cached.ids[b"/whole"]) is None
    local.close()


def test_a_disk_that_is_away_is_left_to_the_node(cached: Cached) -> None:
    local = LocalCache(replace(cached.welcome(), volumes=["/none"]), lambda id: None)
    assert local.open_whole(ROOT_ID, b"whole") is None
    assert local.reader(cached.ids[b"/whole"]) is None
    local.close()
