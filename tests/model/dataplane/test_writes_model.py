"""A node that writes, with lives that end at any step, against a plain folder; and by hand, what it must not take for
somebody else's doing: its own calls that landed late, or whose answers were lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.base.beneath import EXCHANGE
from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.base.model import ROOT_ID
from headrace.overlay.copy_up import NeedsContentError
from headrace.overlay.hiding import pending_removals
from headrace.store.schema import FOREVER_NS
from headrace.testing.waiting import until
from tests.model.dataplane.scene import WriterFixture, playing
from tests.model.dataplane.writer_lives import tree_of

pytestmark = pytest.mark.timeout(300)

EXAMPLES = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
SEEDS = 8
CALLS = ("put", "remove", "make_directory", "remove_directory")


@pytest.mark.parametrize("part", range(EXAMPLES))
def test_what_was_acknowledged_is_at_the_origin_and_nothing_else(tmp_path: Path, part: int) -> None:
    words = ["-m", "tests.model.dataplane.writer_lives", tmp_path, str(part * SEEDS), str(SEEDS)]
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.expected_warnings("retrying later")
async def test_a_removal_whose_answer_was_lost_is_our_own(scene: WriterFixture) -> None:
    await scene.write(b"/f", b"first")
    await scene.persisted()
    scene.held.lose("remove")
    await scene.do(lambda: scene.session.unlink(b"/f"))
    await until(lambda: not (scene.truth / "f").exists())
    await scene.write(b"/f", b"second")
    await scene.check({"/f": b"second".hex()})


@pytest.mark.parametrize("lost", ["put", "put and removal"])
@pytest.mark.expected_warnings("retrying later")
async def test_what_replaces_a_put_whose_answer_was_lost_is_our_own(lost: str, scene: WriterFixture) -> None:
    """The put replaced what somebody else had put, and was removed since; no listing has told of it yet."""
    theirs = scene.truth / "f"
    theirs.write_bytes(b"theirs")
    await asyncio.to_thread(scene.session.tree)
    scene.here.index.names.set_fresh_until(ROOT_ID, FOREVER_NS)
    scene.held.lose("put")
    await scene.write(b"/f", b"second")
    await until(lambda: theirs.read_bytes() == b"second")
    if lost == "put and removal":
        scene.held.lose("remove")
    else:
        scene.held.hold_listing()
    await scene.do(lambda: scene.session.unlink(b"/f"))
    await until(lambda: not theirs.exists())
    await scene.write(b"/f", b"third")
    await scene.here.write.persist(b"/f")
    scene.held.go_on.set()
    await scene.check({"/f": b"third".hex()})


async def test_a_folder_that_is_made_late_is_our_own(scene: WriterFixture) -> None:
    """By then it is removed here, and a file is in its place."""
    scene.held.hold("make_directory")
    await scene.do(lambda: scene.session.mkdir(b"/f"))
    await scene.held.begun.wait()
    await scene.do(lambda: scene.session.rmdir(b"/f"))
    await scene.write(b"/f", b"a file")
    scene.held.go_on.set()
    await scene.check({"/f": b"a file".hex()})


async def test_a_file_that_is_put_late_is_our_own(scene: WriterFixture) -> None:
    """By then it is removed here, and a folder with something in it is in its place."""
    scene.held.hold("put")
    await scene.write(b"/d", b"a file")
    await scene.held.begun.wait()
    await scene.do(lambda: scene.session.unlink(b"/d"), lambda: scene.session.mkdir(b"/d"))
    await scene.write(b"/d/f", b"within")
    scene.held.go_on.set()
    await scene.check({"/d": "dir", "/d/f": b"within".hex()})


@pytest.mark.parametrize("lost", CALLS)
@pytest.mark.expected_warnings("retrying later")
async def test_file_folder_file_in_no_time(lost: str, scene: WriterFixture) -> None:
    session = scene.session
    await scene.write(b"/f", b"first")
    await scene.persisted()
    for number in range(5):
        scene.held.lose(lost)
        await scene.do(lambda: session.unlink(b"/f"), lambda: session.mkdir(b"/f"))
        await asyncio.sleep(0.004 * number)
        await scene.do(lambda: session.rmdir(b"/f"))
        await asyncio.sleep(0.002 * number)
        await scene.write(b"/f", b"again %d" % number)
        await asyncio.sleep(0.003 * number)
    await scene.check({"/f": b"again 4".hex()})


async def by_exchange(scene: WriterFixture) -> None:
    """/d is away, a file is in its place, and it is back again: its old place is yet to be removed at the origin."""
    session = scene.session
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.write(b"/d", b"a file")
    await scene.do(lambda: session.rename(b"/e", b"/d", EXCHANGE), lambda: session.unlink(b"/e"))


async def by_rename(scene: WriterFixture) -> None:
    session = scene.session
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.write(b"/d", b"a file")
    await scene.do(lambda: session.unlink(b"/d"), lambda: session.rename(b"/e", b"/d", 0))


@pytest.mark.parametrize("back", [by_exchange, by_rename])
@pytest.mark.expected_warnings("retrying later", "old listings stay in use")
async def test_a_folder_that_comes_back_to_its_place_is_not_removed(
    back: Callable[[WriterFixture], Awaitable[None]], scene: WriterFixture
) -> None:
    """Though files in it look as they did when the origin had them, and leave the layer."""
    await scene.do(lambda: scene.session.mkdir(b"/d"), lambda: scene.session.mkdir(b"/d/empty"))
    await scene.write(b"/d/f", b"first")
    await scene.persisted()
    await scene.write(b"/d/f", b"second")
    await scene.persisted()
    await scene.origin_goes_away()
    await back(scene)
    for _ in range(5):  # a put that is being tried has the file open: then it does not leave
        await scene.here.write.rescan()
        await asyncio.sleep(0.03)
    wanted = {"/d": "dir", "/d/empty": "dir", "/d/f": b"second".hex()}
    assert await asyncio.to_thread(scene.session.tree) == wanted
    await scene.check(wanted)


async def test_a_folder_that_comes_back_while_it_is_removed_is_made_again(scene: WriterFixture) -> None:
    session = scene.session
    await scene.do(lambda: session.mkdir(b"/d"), lambda: session.mkdir(b"/d/empty"))
    await scene.write(b"/d/f", b"first")
    await scene.persisted()
    scene.held.hold("remove")
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.write(b"/d", b"a file")
    await scene.held.begun.wait()
    await scene.do(lambda: session.unlink(b"/d"), lambda: session.rename(b"/e", b"/d", 0))
    scene.held.go_on.set()
    await scene.check({"/d": "dir", "/d/empty": "dir", "/d/f": b"first".hex()})


async def test_a_folder_that_comes_back_while_its_place_is_emptied_is_made_again(
    scene: WriterFixture,
) -> None:
    session = scene.session
    await scene.do(lambda: session.mkdir(b"/d"), lambda: session.mkdir(b"/d/empty"))
    await scene.persisted()
    scene.held.hold("remove_directory")
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.held.begun.wait()
    await scene.do(lambda: session.rename(b"/e", b"/d", 0))
    scene.held.go_on.set()
    await scene.check({"/d": "dir", "/d/empty": "dir"})


@pytest.mark.parametrize("back", ["made again", "renamed"])
@pytest.mark.expected_warnings("retrying later")
async def test_a_folder_that_comes_back_after_its_removal_was_lost_is_made_again(
    back: str, scene: WriterFixture
) -> None:
    """It looks as if it had been there all the time: its inode is the same."""
    session, folder = scene.session, scene.truth / "f"
    await scene.do(lambda: session.mkdir(b"/f"))
    await scene.persisted()
    await scene.only_when_asked()
    scene.held.lose("remove_directory")
    if back == "made again":
        await scene.do(lambda: session.rmdir(b"/f"))
    else:
        await scene.do(lambda: session.rename(b"/f", b"/e", 0))
    with pytest.raises(OriginUnavailableError):
        await scene.here.write.persist(b"/")
    assert not folder.exists()
    if back == "made again":
        await scene.do(lambda: session.mkdir(b"/f"))
    else:
        await scene.do(lambda: session.rename(b"/e", b"/f", 0))
    await scene.check({"/f": "dir"})


@pytest.mark.expected_warnings("retrying later")
async def test_a_folder_that_was_made_unheard_does_not_come_back_by_a_listing(scene: WriterFixture) -> None:
    """It was read when the folder was there, and is taken in when that is removed again."""
    folder = scene.truth / "f"
    scene.held.lose("make_directory")
    await scene.do(lambda: scene.session.mkdir(b"/f"))
    await until(folder.exists)
    scene.held.hold_listing()
    listing = asyncio.ensure_future(scene.here.namespace.listings.refresh(ROOT_ID))
    await scene.held.begun.wait()
    scene.here.index.names.set_fresh_until(ROOT_ID, FOREVER_NS)  # so that the program does not wait for it
    await scene.do(lambda: scene.session.rmdir(b"/f"))
    await until(lambda: not (folder.exists() or scene.here.upper.names(b"/")))
    scene.held.go_on.set()
    await listing
    assert scene.here.namespace.tree.entry_at(b"/f") is None
    await scene.check({})


async def test_persist_waits_for_what_took_the_place_of_what_was_under_way(scene: WriterFixture) -> None:
    session = scene.session
    scene.held.hold("make_directory")
    await scene.do(lambda: session.mkdir(b"/f"))
    await scene.held.begun.wait()
    await scene.do(lambda: session.rmdir(b"/f"))
    await scene.write(b"/f", b"a file")
    persisting = asyncio.ensure_future(scene.here.write.persist(b"/f"))
    await asyncio.sleep(0.05)
    scene.held.go_on.set()
    await persisting
    assert tree_of(scene.truth, links=False) == {"/f": b"a file".hex()}
    await scene.check({"/f": b"a file".hex()})


async def test_persist_does_not_put_again_what_was_under_way(scene: WriterFixture) -> None:
    scene.held.hold("put")
    await scene.write(b"/f", b"a file")
    await scene.held.begun.wait()
    persisting = asyncio.ensure_future(scene.here.write.persist(b"/f"))
    await asyncio.sleep(0.05)
    scene.held.go_on.set()
    await persisting
    assert scene.here.write.counts.files_persisted == 1
    await scene.check({"/f": b"a file".hex()})


@pytest.mark.expected_warnings("retrying later", "old listings stay in use")
async def test_a_folder_that_is_exchanged_for_a_file_hides_the_one_that_was_there(
    scene: WriterFixture,
) -> None:
    session = scene.session
    await scene.do(lambda: session.mkdir(b"/d"))
    await scene.write(b"/d/old", b"of the old one")
    await scene.persisted()
    await scene.origin_goes_away()
    await scene.do(lambda: session.rename(b"/d", b"/e", 0), lambda: session.mkdir(b"/new"))
    await scene.write(b"/d", b"a file")
    await scene.do(lambda: session.rename(b"/new", b"/d", EXCHANGE))
    wanted = {"/d": "dir", "/e": "dir", "/e/old": b"of the old one".hex(), "/new": b"a file".hex()}
    assert await asyncio.to_thread(session.tree) == wanted
    await scene.check(wanted)


@pytest.mark.parametrize("moved", [b"/old", b"/new"])
async def test_a_folder_in_a_removed_files_place_knows_of_it_when_it_gives_way_to_another(
    moved: bytes, scene: WriterFixture
) -> None:
    """The file is yet to be removed at the origin. moved: a folder of the origin, or one that is made here."""
    session = scene.session
    (scene.truth / "f").write_bytes(b"theirs")
    (scene.truth / "old").mkdir()
    (scene.truth / "old" / "one").write_bytes(b"within")
    await scene.only_when_asked()
    await scene.do(lambda: session.mkdir(b"/new"), lambda: session.unlink(b"/f"))
    await scene.do(lambda: session.mkdir(b"/f"), lambda: session.rename(moved, b"/f", 0))
    left, within = {"/new": "/old", "/old": "/new"}[os.fsdecode(moved)], b"within".hex()
    wanted = {left: "dir", "/f": "dir", ("/f" if moved == b"/old" else "/old") + "/one": within}
    assert await asyncio.to_thread(session.tree) == wanted
    await scene.check(wanted)


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_what_a_removed_folder_hid_goes_though_another_folder_has_a_file_there(
    kind: str, scene: WriterFixture
) -> None:
    """/d/x is a folder at the origin. The folder that takes the place of /d has something else of that name."""
    session = scene.session
    (scene.truth / "d" / "x").mkdir(parents=True)
    (scene.truth / "d" / "x" / "f").write_bytes(b"theirs")
    await scene.only_when_asked()
    await scene.do(lambda: session.mkdir(b"/e"), lambda: session.rename(b"/d", b"/g", 0))
    if kind == "file":
        await scene.write(b"/e/x", b"a file")
    else:
        await scene.do(lambda: session.symlink(b"/e/x"))
    await scene.do(lambda: session.rename(b"/e", b"/d", 0))
    moved = {"/g": "dir", "/g/x": "dir", "/g/x/f": b"theirs".hex(), "/d": "dir"}
    await scene.persisted()
    assert scene.here.write.layer.journal.conflicts() == []
    at_origin = {"/d/x": b"a file".hex()} if kind == "file" else {}
    assert tree_of(scene.truth, links=False) == {**moved, **at_origin}
    shown = {"/d/x": b"a file".hex() if kind == "file" else "link"}
    assert await asyncio.to_thread(session.tree) == {**moved, **shown}


@pytest.mark.parametrize("before", ["persisted here", "of the origin"])
async def test_a_folder_in_a_removed_files_place_moves_on(before: str, scene: WriterFixture) -> None:
    """The file is yet to be removed at the origin; it does not show again."""
    session = scene.session
    if before == "of the origin":
        (scene.truth / "f").write_bytes(b"theirs")
    else:
        await scene.write(b"/f", b"a file")
        await scene.persisted()
    await scene.only_when_asked()
    await scene.do(lambda: session.unlink(b"/f"), lambda: session.mkdir(b"/f"))
    await scene.write(b"/f/one", b"within")
    await scene.do(lambda: session.rename(b"/f", b"/g", 0))
    wanted = {"/g": "dir", "/g/one": b"within".hex()}
    assert await asyncio.to_thread(session.tree) == wanted
    await scene.check(wanted)


async def test_what_went_with_its_folder_is_removed_as_it_was_put(scene: WriterFixture) -> None:
    """A file is in the folder's place, so nothing hides the name: what was put there is still known."""
    session = scene.session
    (scene.truth / "d").mkdir()
    (scene.truth / "d" / "f").write_bytes(b"theirs")
    await asyncio.to_thread(session.tree)
    await scene.write(b"/d/f", b"second")
    await scene.persisted()
    await scene.only_when_asked()
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    await scene.write(b"/d", b"a file")
    scene.here.write.changed([b"/d/f"], 1)
    await scene.check({"/d": b"a file".hex(), "/e": "dir", "/e/f": b"second".hex()})


async def test_a_file_that_leaves_the_layer_before_its_folder_is_renamed_is_copied_again(
    scene: WriterFixture,
) -> None:
    """The folder was copied whole for that, without the layer's lock; its clean files may leave until it is taken."""
    session, tree = scene.session, scene.session._tree
    (scene.truth / "d" / "deep").mkdir(parents=True)
    (scene.truth / "d" / "f").write_bytes(b"theirs")
    await asyncio.to_thread(session.tree)
    await scene.write(b"/d/deep/g", b"ours")
    await scene.persisted()
    await scene.do(lambda: tree.copies.copy_up_all(b"/d", None))
    while scene.here.upper.lookup(b"/d/deep/g") is not None:
        await scene.here.write.rescan()
        await asyncio.sleep(0.01)

    def rename() -> None:
        with tree.lock:
            tree.rename(b"/d", b"/e", 0, copied=True)

    with pytest.raises(NeedsContentError):
        await scene.do(rename)
    await scene.do(lambda: session.rename(b"/d", b"/e", 0))
    wanted = {"/e": "dir", "/e/deep": "dir", "/e/deep/g": b"ours".hex(), "/e/f": b"theirs".hex()}
    assert await asyncio.to_thread(session.tree) == wanted
    await scene.check(wanted)


@pytest.mark.parametrize("by", ["persist", "itself"])
@pytest.mark.expected_warnings("retrying later")
async def test_a_folder_in_a_files_place_is_no_conflict_for_what_is_in_it(
    by: str, scene: WriterFixture
) -> None:
    """The file is in its way until it is removed, of which nothing was noted yet."""
    session, write = scene.session, scene.here.write
    (scene.truth / "d").write_bytes(b"theirs")
    await scene.only_when_asked()
    await scene.do(lambda: session.rename(b"/d", b"/e", 0), lambda: session.mkdir(b"/d"))
    await scene.write(b"/d/f", b"ours")
    wanted = {"/d": "dir", "/d/f": b"ours".hex(), "/e": b"theirs".hex()}
    if by == "persist":
        await write.persist(b"/d/f")
        assert (scene.truth / "d" / "f").read_bytes() == b"ours"
    else:  # it has been quiet for longer than its folder
        await write._reconcile_round([b"/d/f"])
        assert (scene.truth / "d").read_bytes() == b"theirs"
    assert await asyncio.to_thread(session.tree) == wanted
    await scene.check(wanted)


async def refuses(key: str, *, deadline: Deadline) -> None:
    raise OriginUnavailableError(key, why="by plan")


@pytest.mark.parametrize("by", ["persist", "itself"])
async def test_what_was_put_aside_is_removed_though_nothing_else_is_dirty(
    by: str, scene: WriterFixture
) -> None:
    """A link is in its place. Its removal fails until all else is persisted."""
    session = scene.session
    (scene.truth / "d").mkdir()
    (scene.truth / "d" / "f").write_bytes(b"within")
    await scene.only_when_asked()
    remove_directory = scene.here.origin.remove_directory
    scene.here.origin.remove_directory = refuses  # type: ignore[method-assign]
    await scene.do(lambda: session.rename(b"/d", b"/e", 0), lambda: session.symlink(b"/d"))
    while scene.here.write.waiting(b"/")[0] or not (scene.truth / "e" / "f").exists():
        with contextlib.suppress(OriginUnavailableError):
            await scene.here.write.persist(b"/")
        await asyncio.sleep(0.01)
    assert (scene.truth / "d").exists()
    scene.here.origin.remove_directory = remove_directory  # type: ignore[method-assign]
    if by == "persist":
        await scene.here.write.persist(b"/")
        assert not (scene.truth / "d").exists()
    await until(lambda: not (scene.truth / "d").exists())
    wanted = {"/e": "dir", "/e/f": b"within".hex()}
    assert tree_of(scene.truth, links=False) == wanted
    assert await asyncio.to_thread(session.tree) == {**wanted, "/d": "link"}


async def test_what_was_put_aside_of_a_local_folder_stays_at_the_origin(tmp_path: Path) -> None:
    """A file is in its place, and other paths are persisted."""
    async with playing(tmp_path, modes="back,/here=local") as scene:
        session = scene.session
        (scene.truth / "here" / "d").mkdir(parents=True)
        (scene.truth / "here" / "d" / "f").write_bytes(b"theirs")
        before = tree_of(scene.truth, links=False)
        await asyncio.to_thread(session.tree)
        await scene.do(lambda: session.unlink(b"/here/d/f"), lambda: session.rmdir(b"/here/d"))
        await scene.write(b"/here/d", b"a file")
        await scene.write(b"/else", b"more")
        await scene.persisted()
        assert len(pending_removals(scene.here.upper)) == 1
        assert tree_of(scene.truth, links=False) == {**before, "/else": b"more".hex()}
        shown = {"/here": "dir", "/here/d": b"a file".hex(), "/else": b"more".hex()}
        assert await asyncio.to_thread(session.tree) == shown


@pytest.mark.expected_warnings("another writer changed a file at the origin")
async def test_a_folder_where_somebody_put_a_file_is_kept_beside(scene: WriterFixture) -> None:
    (scene.truth / "d").write_bytes(b"theirs")
    await scene.do(lambda: scene.session.mkdir(b"/e"))
    scene.held.hold("make_directory")
    (scene.truth / "d").unlink()
    await scene.here.namespace.listings.refresh_listed(b"/")
    await scene.do(lambda: scene.session.mkdir(b"/d"))
    await scene.write(b"/d/f", b"ours")
    (scene.truth / "d").write_bytes(b"theirs")
    scene.held.go_on.set()
    await scene.persisted()
    (conflict,) = scene.here.write.layer.journal.conflicts()
    kept = os.fsdecode(conflict.kept)
    wanted = {"/d": b"theirs".hex(), "/e": "dir", kept: "dir", f"{kept}/f": b"ours".hex()}
    assert tree_of(scene.truth, links=False) == wanted
    assert await asyncio.to_thread(scene.session.tree) == wanted
