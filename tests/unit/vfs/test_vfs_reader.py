"""The fast path of a cached file and the merged path give the same answer, also just after a change."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import (
    CancelledByUserError,
    HeadraceError,
    OriginUnavailableError,
    PathNotFoundError,
)
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.sdk.bulk_read import ThreadedBulkReader
from headrace.sdk.local_bulk_read import LocalBulkReader
from headrace.vfs import lower_paths
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, FillRange, Open, OpenedMany, OpenMany
from tests.unit.client.conftest import Cached
from tests.unit.client.scripted_node import ScriptedNode

OpenVfs = Callable[..., LocalVfs]
WHOLE = [b"/whole", b"/dir/inner", b"/empty", b"/large"]


def fast(vfs: LocalVfs, path: bytes) -> bytes | None:
    """Return the bytes by the fast path, or None where the merged path has to be used."""
    opened = vfs.open_whole(path)
    entry = vfs.open_whole_entry(path)
    assert (opened is None) is (entry is None)
    if opened is None or entry is None:
        return None
    data = os.pread(opened[0], 1 << 22, 0)
    assert (opened[1], os.pread(entry.fd, 1 << 22, 0)) == (len(data), data)
    assert vfs.get(path)[1] == entry.entry
    os.close(opened[0])
    os.close(entry.fd)
    return data


def merged(vfs: LocalVfs, path: bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return the bytes by the merged path only."""
    with monkeypatch.context() as patch:
        patch.setattr(vfs, "open_whole", lambda path: None)
        content = vfs.content(path)
        data = content.read(0, content.size_bytes)
        assert vfs.read(path, 0, None) == data
        content.close()
    return data


@pytest.mark.parametrize("write", ["", "back", "off,/dir=back"])
@pytest.mark.parametrize("path", WHOLE)
def test_both_ways_give_the_bytes_of_the_cache(
    open_vfs: OpenVfs, cached: Cached, monkeypatch: pytest.MonkeyPatch, write: str, path: bytes
) -> None:
    vfs, data = open_vfs(write), cached.files[path]
    assert fast(vfs, path) is None, "its directory was not looked up yet"
    assert merged(vfs, path, monkeypatch) == data
    assert fast(vfs, path) == data
    assert merged(vfs, path, monkeypatch) == data
    for start, end in ((0, None), (1, 3), (len(data), None), (0, len(data) + 5), (3, 2)):
        assert vfs.read(path, start, end) == data[start:end]


def test_the_fast_path_ends_with_the_lookup_of_the_directory(
    vfs: LocalVfs, cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_paths, "DIRECTORY_KEPT_S", -1.0)
    for _ in range(2):
        assert vfs.read(b"/whole", 0, None) == cached.files[b"/whole"]
        assert fast(vfs, b"/whole") is None


@pytest.mark.parametrize("path", [b"/whole", b"/dir/inner"])
def test_a_written_file_is_read_at_once_in_both_ways(
    vfs: LocalVfs, cached: Cached, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    assert vfs.read(path, 0, None) == cached.files[path] == fast(vfs, path)
    with vfs.create(path, replace=True) as stream:
        stream.write(b"written")
    assert fast(vfs, path) is None
    assert vfs.read(path, 0, None) == merged(vfs, path, monkeypatch) == b"written"
    vfs.remove(path)
    assert fast(vfs, path) is None
    with pytest.raises(PathNotFoundError):
        vfs.read(path, 0, None)
    other = b"/large" if path == b"/whole" else b"/whole"
    assert vfs.read(other, 0, None) == fast(vfs, other) == cached.files[other], "a neighbour stays fast"


def test_a_removed_directory_hides_what_was_fast(vfs: LocalVfs, cached: Cached) -> None:
    assert vfs.read(b"/dir/inner", 0, None) == fast(vfs, b"/dir/inner")
    vfs.remove_all(b"/dir")
    assert fast(vfs, b"/dir/inner") is None
    with pytest.raises(PathNotFoundError):
        vfs.content(b"/dir/inner")
    vfs.make_directory(b"/dir")
    with pytest.raises(PathNotFoundError):
        vfs.content(b"/dir/inner")


def test_a_file_with_holes_is_never_fast(vfs: LocalVfs) -> None:
    assert vfs.exists(b"/partial")
    assert fast(vfs, b"/partial") is None
    assert vfs.content_if_cached(b"/partial") is None


@pytest.mark.parametrize("path", [b"relative", b"", b"whole", b"//whole", b"/dir//inner", b"/./whole"])
def test_a_path_that_is_not_normal_is_never_fast(vfs: LocalVfs, path: bytes) -> None:
    for known in WHOLE:
        vfs.read(known, 0, None)
    assert fast(vfs, path) is None


# ------------------------------------------------------------ files that have to be waited for


def test_a_wait_for_a_whole_file_is_cancelled(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    content, cancel = vfs.content(b"/partial"), Cancel()
    (node,) = nodes

    def hang(request: Message) -> list[Answer]:
        cancel.set()
        return []

    node.answer = hang
    with pytest.raises(CancelledByUserError):
        content.wait_whole(cancel)
    assert node.left.acquire(timeout=30), "so the node cancels its fetch"
    assert content.read(0, 100) == bytes(100), "what is there is still read"
    cancel.close()
    content.close()


def test_an_error_of_a_fill_reaches_the_reader(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    stream = vfs.open(b"/partial")
    nodes[0].answer = lambda request: [frame.failure_of(OriginUnavailableError("/partial"))]
    assert stream.read(10) == bytes(10)
    stream.seek(BLOCK_SIZE_BYTES)
    with pytest.raises(OriginUnavailableError):
        stream.read(1)
    stream.close()
    (fill,) = nodes[0].asked(FillRange)
    assert isinstance(fill, FillRange) and fill.start == BLOCK_SIZE_BYTES


# ------------------------------------------------------------ batches


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("kind", [LocalBulkReader, ThreadedBulkReader])
def test_a_batch_gives_each_request_its_own_answer(
    vfs: LocalVfs,
    nodes: list[ScriptedNode],
    cached: Cached,
    kind: type[LocalBulkReader] | type[ThreadedBulkReader],
    *,
    ordered: bool,
) -> None:
    """One that fails costs no other; `uncached` is known to the index, and the origin is away."""

    def answer(request: Message) -> list[Answer]:
        if isinstance(request, OpenMany):
            return [OpenedMany([], True)]
        return (
            [frame.failure_of(OriginUnavailableError("/uncached"))] if isinstance(request, Open) else [Done()]
        )

    nodes[0].answer = answer
    paths = ["/whole", "/missing", "/uncached", "/dir/inner", "/dir", "/empty", "/large"] * 40
    wanted = [path if number % 2 else (path, 1, 4) for number, path in enumerate(paths)]
    reader = kind(vfs)
    results = list(reader.read(wanted, ordered=ordered, on_error="return"))
    reader.close()
    assert sorted(result.number for result in results) == list(range(len(paths)))
    assert not ordered or [result.number for result in results] == list(range(len(paths)))
    errors = {"/missing": "path.not_found", "/uncached": "origin.unavailable", "/dir": "path.is_a_directory"}
    for result in results:
        path = paths[result.number]
        assert result.path == path
        if path in errors:
            assert isinstance(result.error, HeadraceError) and result.error.code == errors[path]
            assert result.data == b""
        else:
            data = cached.files[path.encode()]
            assert (result.error, result.data) == (None, data if result.number % 2 else data[1:4])


@pytest.mark.parametrize("kind", [LocalBulkReader, ThreadedBulkReader])
def test_a_batch_that_raises_ends_at_its_first_error(
    vfs: LocalVfs, kind: type[LocalBulkReader] | type[ThreadedBulkReader]
) -> None:
    reader = kind(vfs)
    results = reader.read(["/whole", "/missing", "/large"], ordered=True, on_error="raise")
    assert next(results).path == "/whole"
    with pytest.raises(PathNotFoundError):
        next(results)
    assert list(results) == []
    assert [result.path for result in reader.read(["/large"], ordered=True, on_error="raise")] == ["/large"]
    reader.close()


def test_a_listing_keeps_a_file_that_the_upper_layer_gives_up_meanwhile(
    vfs: LocalVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = list(vfs.children(b"/"))
    monkeypatch.setattr(vfs.tree.view, "names", lambda path: [(b"large", True), (b"removed", True)])
    assert list(vfs.children(b"/")) == before
