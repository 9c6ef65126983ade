"""Names that other nodes wrote, over an origin in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.base.errors import OriginUnavailableError
from headrace.base.model import FileId, Kind, Version
from headrace.namespace import owner_listing
from headrace.namespace.mounts import MountTable
from headrace.namespace.namespace import Namespace
from headrace.namespace.pending_rows import Rows
from headrace.namespace.refresh_queue import RefreshQueue
from headrace.overlay.pending_version import PendingVersion, is_pending
from headrace.store import index as index_module
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import NameRow
from tests.unit.namespace.tree_fixture import GatedOrigin, NamespaceFixture, origin_with

pytestmark = pytest.mark.timeout(60)


class Others:
    """Answers for the other nodes. gone: whether one of them is."""

    def __init__(self) -> None:
        self.said: dict[bytes, Rows] = {}
        self.gone = False

    def any_gone(self, folder: bytes) -> bool:
        return self.gone

    async def rows(self, folder: bytes) -> Rows:
        return dict(self.said.get(folder, {}))

    def say(self, folder: bytes, *rows: NameRow, hidden: Sequence[bytes] = ()) -> None:
        self.said[folder] = {row.name: row for row in rows} | dict.fromkeys(hidden)


def file(name: bytes, ctime_ns: int = 1) -> NameRow:
    return NameRow(name, int(Kind.FILE), 5, 7, PendingVersion("n1", 3, ctime_ns).token)


def folder(name: bytes) -> NameRow:
    return NameRow(name, int(Kind.DIRECTORY), 0, 0, "")


@pytest.fixture
def others() -> Others:
    return Others()


@pytest.fixture
def tree(tmp_path: Path, others: Others) -> Iterator[NamespaceFixture]:
    fixture = NamespaceFixture(tmp_path / "index")
    fixture.mounts = MountTable()
    fixture.namespace = Namespace.build(
        fixture.index, fixture.mounts, timeout_s=5, on_changed=fixture.report, others=others
    )
    yield fixture
    fixture.index.close(clean=False)


async def settled(tree: NamespaceFixture) -> None:
    """All that was stirred is seen."""
    await until(lambda: not tree.namespace.refreshes.busy)


def version(tree: NamespaceFixture, path: bytes) -> Version:
    entry = tree.namespace.tree.entry_at(path)
    assert entry is not None
    return entry.version


async def test_names_of_others_are_merged_and_go_again(tree: NamespaceFixture, others: Others) -> None:
    tree.attach("/", origin_with("d/a", "d/b", "d/c"))
    others.say(b"/d", file(b"b"), file(b"new"), hidden=(b"c",))
    assert await tree.names("/d") == ["a", "b", "new"]
    assert is_pending(version(tree, b"/d/b"))
    assert not is_pending(version(tree, b"/d/a"))
    id = tree.namespace.tree.entry_at(b"/d/b")
    await tree.namespace.listings.refresh_listed(b"/d")
    assert tree.namespace.tree.entry_at(b"/d/b") == id
    others.say(b"/d")
    await tree.namespace.listings.refresh_listed(b"/d")
    assert await tree.names("/d") == ["a", "b", "c"]
    assert not is_pending(version(tree, b"/d/b"))


async def test_what_is_stirred_is_seen_where_somebody_looked(tree: NamespaceFixture, others: Others) -> None:
    origin = origin_with("d/a", "e/a")
    tree.attach("/", origin)
    assert await tree.names("/d") == ["a"]
    others.say(b"/d", file(b"x"))
    others.say(b"/e", file(b"x"))
    tree.changed.clear()
    tree.namespace.refreshes.schedule(b"/", True)
    await settled(tree)
    assert [name for _, name in tree.changed] == [b"x"]
    assert tree.namespace.tree.entry_at(b"/e/x") is None
    others.say(b"/d", file(b"x", 2))
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    assert "3-2" in version(tree, b"/d/x").token
    others.say(b"/d")
    origin.hold("d/x", b"persisted")
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    assert version(tree, b"/d/x").size_bytes == len(b"persisted")


async def test_peers_are_told_what_the_origin_has(tree: NamespaceFixture, others: Others) -> None:
    tree.attach("/", origin_with("d/a", "d/b"))
    await tree.names("/d")
    others.say(b"/d", file(b"a"), file(b"new"), hidden=(b"b",))
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    directory = tree.namespace.tree.make_directories(b"/d")
    for _ in range(2):
        (page,) = tree.namespace.owner_names.pages(directory)
        assert sorted((row.name, is_pending(Version(0, 0, row.token))) for row in page.rows) == [
            (b"a", False),
            (b"b", False),
        ]
        assert [row.name for row in tree.namespace.owner_names.page_of(directory, b"b").rows] == [b"b"]
        assert not tree.namespace.owner_names.page_of(directory, b"new").rows
        await tree.namespace.listings.refresh_listed(b"/d")


async def test_names_that_change_between_two_pages_are_neither_left_out_nor_shown_as_written(
    tree: NamespaceFixture, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop does other work between two pages of a large directory."""
    monkeypatch.setattr(owner_listing, "NAMES_A_PAGE", 2)
    monkeypatch.setattr(index_module, "CHILDREN_BATCH", 1)
    names = [bytes([letter]) for letter in b"abcdefgh"]
    tree.attach("/", origin_with(*(f"d/{os.fsdecode(name)}" for name in names)))
    await tree.names("/d")
    directory = tree.namespace.tree.make_directories(b"/d")
    steps = [
        ((file(b"a"), file(b"h"), folder(b"i")), (b"g",)),
        ((file(b"a"), file(b"f", 2), folder(b"i"), file(b"j")), (b"c", b"e", b"h")),
        ((file(b"k"), file(b"c", 3)), (b"a", b"e")),
        ((file(b"e", 4), file(b"c", 3)), (b"a", b"g", b"h")),
    ]
    for begun in range(len(steps)):
        pages, rows, left = tree.namespace.owner_names.pages(directory), [], list(steps)
        for entries, hidden in steps[:begun]:
            await changed(tree, others, *entries, hidden=hidden)
            left.pop(0)
        for page in pages:
            rows += page.rows
            if left:
                entries, hidden = left.pop(0)
                await changed(tree, others, *entries, hidden=hidden)
        assert {row.name for row in rows} == set(names)
        assert not any(is_pending(Version(0, 0, row.token)) for row in rows)
        assert {Kind(row.kind) for row in rows} == {Kind.FILE}
        await changed(tree, others)


async def changed(
    tree: NamespaceFixture, others: Others, *rows: NameRow, hidden: Sequence[bytes] = ()
) -> None:
    """Let the pending names of a directory be these."""
    others.say(b"/d", *rows, hidden=hidden)
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)


async def test_what_a_writer_that_is_gone_told_nobody_of_is_seen(
    tree: NamespaceFixture, others: Others
) -> None:
    """It put a file, whose name its holder knows no more, and died before it could say that listings are old."""
    origin = origin_with("d/a")
    tree.attach("/", origin)
    await tree.names("/d")
    origin.hold("d/last", b"last")
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    assert sorted(await tree.names("/d")) == ["a"]
    others.gone = True
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    assert sorted(await tree.names("/d")) == ["a", "last"]


async def test_a_folder_that_goes_while_it_is_listed_anew_is_no_error(
    tree: NamespaceFixture, others: Others
) -> None:
    """It waited for another listing of it; meanwhile the one above it was listed, and had it no more."""
    origin = origin_with("d/a", "e")
    tree.attach("/", origin)
    assert await tree.names("/d") == ["a"]
    first, second = (asyncio.ensure_future(tree.namespace.listings.refresh_listed(b"/d")) for _ in range(2))
    await asyncio.sleep(0)
    origin.delete("d/a")
    tree.namespace.changes.record_removal(b"/d", is_directory=True)
    await asyncio.gather(first, second)
    assert tree.namespace.tree.entry_at(b"/d") is None


@pytest.mark.parametrize("persisted", ["before", "after"])
async def test_a_name_is_there_while_a_listing_and_the_end_of_its_row_cross(
    tree: NamespaceFixture, others: Others, persisted: str
) -> None:
    """The row is asked for, the listing begins, and its writer has persisted the file before the listing has its end.
    persisted: before the page was read, or after it."""
    origin = GatedOrigin()
    for name in ("d/a", "d/gone"):
        origin.hold(name, b"old")
    tree.attach("/", origin)
    await tree.names("/d")
    others.say(b"/d", file(b"x"), file(b"a"), hidden=(b"gone",))
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)

    def persist() -> None:
        origin.hold("d/x", b"x")
        origin.hold("d/a", b"new")
        origin.delete("d/gone")

    if persisted == "before":
        persist()
    origin.gate.clear()
    early = asyncio.ensure_future(tree.namespace.listings.refresh_listed(b"/d"))
    await pass_time(0.01)  # its page was read, and it waits for the next one
    if persisted == "after":
        persist()
    others.say(b"/d")
    tree.namespace.refreshes.schedule(b"/d", False)
    await pass_time(0.01)
    shown: list[list[bytes]] = []
    on_changed = tree.on_changed
    known = tree.namespace.tree.entry_at(b"/d")
    assert known is not None
    directory = known.id

    def look(names: list[tuple[FileId, bytes]]) -> None:
        on_changed(names)
        shown.append(sorted(entry.name for entry in tree.index.children(directory)))

    tree.on_changed = look
    origin.gate.set()
    await early
    shown.append(sorted(entry.name for entry in tree.index.children(directory)))
    await settled(tree)
    assert all(names == [b"a", b"x"] for names in shown), shown
    assert [version(tree, path).size_bytes for path in (b"/d/a", b"/d/x")] == [3, 1]
    assert not is_pending(version(tree, b"/d/a"))


async def test_peers_are_told_what_this_node_put_in_anothers_place(
    tree: NamespaceFixture, others: Others
) -> None:
    """A listing that began before is no reason to tell them otherwise."""
    tree.attach("/", origin_with("d/a", "d/b"))
    await tree.names("/d")
    others.say(b"/d", file(b"a"), file(b"new"), folder(b"made"), hidden=(b"b",))
    tree.namespace.refreshes.schedule(b"/d", False)
    await settled(tree)
    directory = tree.namespace.tree.make_directories(b"/d")
    before = tree.namespace.changes._pending.listing(b"/d")
    tree.namespace.changes.record_put(b"/d/new", Version(9, 9, '"new"'))
    tree.namespace.changes.record_directory(b"/d/made")
    tree.namespace.changes.record_removal(b"/d/b")
    for _ in range(2):
        (page,) = tree.namespace.owner_names.pages(directory)
        rows = sorted((row.name, Kind(row.kind), row.token) for row in page.rows if row.name != b"a")
        assert rows == [(b"made", Kind.DIRECTORY, ""), (b"new", Kind.FILE, '"new"')]
        before.rest([file_at_origin(b"b")])
        before.end()
    await tree.namespace.listings.refresh_listed(b"/d")  # a listing that begins now knows better
    (page,) = tree.namespace.owner_names.pages(directory)
    assert sorted(row.name for row in page.rows) == [b"a", b"b"]


def file_at_origin(name: bytes) -> NameRow:
    return NameRow(name, int(Kind.FILE), 5, 7, '"old"')


async def test_a_folder_that_no_origin_has(tree: NamespaceFixture, others: Others) -> None:
    tree.attach("/", origin_with("a"))
    others.say(b"/", folder(b"new"))
    others.say(b"/new", folder(b"deep"), file(b"f"))
    others.say(b"/new/deep", file(b"g"))
    assert await tree.names("/") == ["a", "new"]
    assert await tree.names("/new") == ["deep", "f"]
    assert await tree.names("/new/deep") == ["g"]
    assert tree.namespace.changes.is_pending(b"/new/f")
    assert not tree.namespace.changes.is_pending(b"/a")
    others.said.clear()
    tree.namespace.refreshes.schedule(b"/", True)
    await settled(tree)
    assert await tree.names("/") == ["a"]
    assert tree.namespace.tree.entry_at(b"/new/deep/g") is None


async def test_a_change_that_comes_while_a_refresh_fails_is_not_lost() -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()
    refreshed: list[bytes] = []

    async def refresh(path: bytes) -> None:
        if not began.is_set():
            began.set()
            await goes_on.wait()
            raise OriginUnavailableError("mem", why="away by plan")
        refreshed.append(path)

    async def below(path: bytes) -> AsyncIterator[bytes]:
        yield path

    queue = RefreshQueue(refresh, below)
    queue.schedule(b"/d", False)
    await began.wait()
    queue.schedule(b"/d", False)
    goes_on.set()
    await until(lambda: not queue.busy)
    assert refreshed == [b"/d"]
