"""Nodes of a writable mount lead to the names that they have now, whoever moved them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.base.model import ROOT_ID, FileId
from headrace.fuse.generations import BYTES, Generations
from headrace.fuse.node_ids import NODE_SHIFT, UPPER
from headrace.fuse.node_table import NodeTable, ReplacedError
from headrace.overlay.mark_names import MARKS
from headrace.overlay.upper import Upper

LOWER = FileId(77)


@pytest.fixture
def upper(tmp_path: Path) -> Iterator[Upper]:
    layer = Upper(str(tmp_path / "upper"))
    layer.make()
    yield layer
    layer.close()


@pytest.fixture
def table(upper: Upper) -> NodeTable:
    return new_table(upper)


def new_table(upper: Upper) -> NodeTable:
    """The index knows one directory, /lower."""
    return NodeTable(upper, {ROOT_ID: b"/", LOWER: b"/lower"}.get, Generations(bytearray(BYTES)))


def make(upper: Upper, path: bytes, *, directory: bool = False) -> os.stat_result:
    if directory:
        upper.at(path).mkdir(0o755)
    else:
        os.close(upper.at(path).open(os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644))
    return upper.at(path).lstat()


def learn(table: NodeTable, upper: Upper, path: bytes, parent: int = ROOT_ID) -> int:
    node = table.node_of(path, upper.at(path).lstat())
    return table.remember(node, parent, path.rpartition(b"/")[2], file=path)[0]


def later(node: int, count: int = 1) -> int:
    """Return the node id of a later file of a node's inode number."""
    return node + (count << NODE_SHIFT)


class NumberTakenError(Exception):
    """Another process got the inode number of a file that the test removed."""


def repeated(test: Callable[[NodeTable, Upper], None]) -> Callable[[Path], None]:
    """Run a test again, with a new layer, while other processes get the inode number that it waits for."""

    def attempts(tmp_path: Path) -> None:
        for attempt in range(20):
            layer = Upper(str(tmp_path / str(attempt)))
            layer.make()
            try:
                return test(new_table(layer), layer)
            except NumberTakenError:
                continue
            finally:
                layer.close()
        pytest.skip("the file system doesn't use an inode number again")

    attempts.__doc__ = test.__doc__
    return attempts


def remade(upper: Upper, removed: bytes, path: bytes) -> None:
    """Remove a file, and create another one that gets its inode number."""
    number = upper.at(removed).lstat().st_ino
    upper.at(removed).unlink()
    for serial in range(100):
        name = b"/try-%d" % serial
        if make(upper, name).st_ino == number:
            return upper.at(name).rename(upper.at(path))
    raise NumberTakenError


def test_a_file_has_the_number_of_its_inode(table: NodeTable, upper: Upper) -> None:
    status = make(upper, b"/file")
    assert table.node_of(b"/file", status) == UPPER | status.st_ino
    assert table.path(table.node_of(b"/file", status)) == b"/file", "also one that was never looked up"
    assert table.path(ROOT_ID) == b"/"
    assert table.path(UPPER | 1) is None


def test_a_directory_that_was_copied_up_keeps_its_id(table: NodeTable, upper: Upper) -> None:
    status = make(upper, b"/lower", directory=True)
    assert table.node_of(b"/lower", status) == UPPER | status.st_ino
    upper.at(b"/lower").setxattr(MARKS.lower_id, b"%d" % LOWER)
    assert table.node_of(b"/lower", status) == LOWER
    assert table.path(LOWER) == b"/lower"


def test_a_file_that_was_copied_up_shows_its_former_number(table: NodeTable, upper: Upper) -> None:
    status = make(upper, b"/file")
    upper.at(b"/file").setxattr(MARKS.lower_id, b"99")
    node = table.node_of(b"/file", status)
    assert table.numbers == {node: 99}
    upper.at(b"/file").setxattr(MARKS.lower_id, b"no number")
    assert table.node_of(b"/file", status) == node
    assert table.numbers == {}


def test_the_newest_name_is_used_while_it_is_true(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/first")
    upper.at(b"/first").link(upper.at(b"/second"))
    node = learn(table, upper, b"/first")
    assert learn(table, upper, b"/second") == node
    assert table.path(node) == b"/second"
    upper.at(b"/second").unlink()
    assert table.path(node) == b"/first"


def test_moves_and_removals_of_this_session(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/old")
    node = learn(table, upper, b"/old")
    upper.at(b"/old").rename(upper.at(b"/new"))
    table.moved(node, (ROOT_ID, b"old"), (ROOT_ID, b"new"))
    assert table.path(node) == b"/new"
    upper.at(b"/new").unlink()
    table.removed(node, (ROOT_ID, b"new"))
    assert table.path(node) is None


def test_a_node_below_a_moved_directory_is_found(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/out", directory=True)
    make(upper, b"/out/in", directory=True)
    make(upper, b"/out/in/file")
    out = learn(table, upper, b"/out")
    inner = learn(table, upper, b"/out/in", out)
    file = learn(table, upper, b"/out/in/file", inner)
    upper.at(b"/out").rename(upper.at(b"/moved"))  # by another session: no call of the table
    assert table.path(file) == b"/moved/in/file"
    upper.at(b"/moved/in/file").rename(upper.at(b"/file"))
    assert table.path(file) == b"/file"


def test_names_that_form_a_cycle_end(table: NodeTable, upper: Upper) -> None:
    """Names that were learnt at different times may."""
    first, second = make(upper, b"/first", directory=True), make(upper, b"/second", directory=True)
    nodes = UPPER | first.st_ino, UPPER | second.st_ino
    table.remember(nodes[0], nodes[1], b"first")
    table.remember(nodes[1], nodes[0], b"second")
    assert [table.path(node) for node in nodes] == [b"/first", b"/second"]
    table.remember(UPPER | 5, UPPER | 6, b"x")
    table.remember(UPPER | 6, UPPER | 5, b"y")
    assert table.path(UPPER | 5) is None


def test_a_node_is_forgotten_after_as_many_lookups(table: NodeTable, upper: Upper) -> None:
    status = make(upper, b"/file")
    upper.at(b"/file").setxattr(MARKS.lower_id, b"99")
    node = table.node_of(b"/file", status)
    for _ in range(3):
        table.remember(node, ROOT_ID, b"file")
    table.forget(node, 2)
    assert table.numbers == {node: 99}
    table.forget(node, 1)
    assert table.numbers == {}
    table.forget(node, 1)  # it is unknown by now, and nothing happens


def test_a_new_file_of_an_old_inode_number_is_another_node(table: NodeTable, upper: Upper) -> None:
    status = make(upper, b"/file")
    node = UPPER | status.st_ino
    assert table.remember(node, ROOT_ID, b"old") == (node, 0)
    assert table.remember(node, ROOT_ID, b"old") == (node, 0)
    assert table.remember(node, ROOT_ID, b"file", new=True) == (later(node), 0)
    assert [table.path(each) for each in (node, later(node))] == [None, b"/file"]
    assert [table.is_node(each, status) for each in (node, later(node))] == [False, True]
    assert table.node_of(b"/file", status) == later(node)
    table.forget(later(node), 1)
    assert table.node_of(b"/file", status) == later(node), "as long as the kernel knows the first node"
    table.forget(node, 2)
    assert table.node_of(b"/file", status) == node


def test_a_node_id_that_comes_back_is_another_generation(table: NodeTable, upper: Upper) -> None:
    """The kernel knows the first node until the end, and its id has 16 bits for the later ones."""
    status = make(upper, b"/file")
    node = table.remember(UPPER | status.st_ino, ROOT_ID, b"old", new=True)[0]
    for count in range(1, 1 << 16):
        newest = table.node_of(b"/file", status)
        assert table.remember(newest, ROOT_ID, b"file", new=True) == (later(node, count), 0)
        if count > 1:
            table.forget(newest, 1)
    assert table.path(node) is None
    last = table.node_of(b"/file", status)
    assert table.remember(last, ROOT_ID, b"file", new=True) == (node, 1)
    assert table.path(node) == b"/file"
    assert table.remember(node, ROOT_ID, b"file") == (node, 1)


def test_the_next_session_continues_with_the_nodes_of_a_number(upper: Upper) -> None:
    node = UPPER | make(upper, b"/file").st_ino
    memory = bytearray(BYTES)
    first = NodeTable(upper, lambda _: None, Generations(memory))
    first.remember(node, ROOT_ID, b"old")
    assert first.remember(node, ROOT_ID, b"file", new=True) == (later(node), 0)
    second = NodeTable(upper, lambda _: None, Generations(memory))
    assert learn(second, upper, b"/file") == later(node)
    second.forget(later(node), 1)
    assert learn(second, upper, b"/file") == later(node), "the kernel may have lookups of the first session"
    second.forget(later(node), 1)
    assert second.remember(later(node), ROOT_ID, b"file", new=True) == (later(node, 2), 0), (
        "the kernel may know the first file"
    )


def test_a_removed_directory_has_its_last_attributes_until_it_is_forgotten(
    table: NodeTable, upper: Upper
) -> None:
    status = make(upper, b"/made", directory=True)
    node = learn(table, upper, b"/made")
    upper.at(b"/made").rmdir()
    table.directory_removed(node, (ROOT_ID, b"made"), status)
    make(upper, b"/made", directory=True)  # perhaps of the same inode number
    assert learn(table, upper, b"/made") != node
    assert table.removed_directory(node) == status
    assert table.path(node) is None
    table.forget(node, 1)
    assert table.removed_directory(node) is None


def test_a_file_below_a_removed_directory_has_no_path(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/made", directory=True)
    node = learn(table, upper, b"/made")
    make(upper, b"/made/file")
    file = learn(table, upper, b"/made/file", node)
    status = upper.at(b"/made").lstat()
    upper.at(b"/made/file").unlink()
    upper.at(b"/made").rmdir()
    table.directory_removed(node, (ROOT_ID, b"made"), status)
    assert table.path(file) is None


def test_a_directory_of_the_origin_that_was_renamed_is_found_by_its_mark(
    table: NodeTable, upper: Upper
) -> None:
    make(upper, b"/moved", directory=True)
    upper.at(b"/moved").setxattr(MARKS.lower_id, b"%d" % LOWER)
    make(upper, b"/lower", directory=True)  # a new one took its place
    assert table.path(LOWER) == b"/moved"


def after_takeover(upper: Upper, memory: bytearray) -> NodeTable:
    generations = Generations(memory)
    generations.begin_at(1)
    return NodeTable(upper, lambda _: None, generations)


def test_the_inode_number_of_a_removed_file_leads_to_no_other_file_after_a_takeover(upper: Upper) -> None:
    """A program has the removed file open. Here /file is the later file that got its number."""
    status, memory = make(upper, b"/file"), bytearray(BYTES)
    node = UPPER | status.st_ino
    first = after_takeover(upper, memory)
    assert first.remember(node, ROOT_ID, b"old") == (node, 0)
    first.removed(node, (ROOT_ID, b"old"), status)
    second = after_takeover(upper, memory)
    assert second.path(node) is None, "the kernel's node is the removed file"
    assert learn(second, upper, b"/file") == later(node), "whoever made it"
    assert second.path(later(node)) == b"/file"
    third = after_takeover(upper, memory)
    assert third.path(later(node)) == b"/file"
    assert learn(third, upper, b"/file") == later(node)


def test_a_file_that_an_earlier_session_sent_is_removed(upper: Upper) -> None:
    status, memory = make(upper, b"/file"), bytearray(BYTES)
    node = UPPER | status.st_ino
    after_takeover(upper, memory)
    second = after_takeover(upper, memory)
    second.removed(node, (ROOT_ID, b"old"), status)
    assert learn(second, upper, b"/file") == later(node)
    second.forget(node, 3)  # those of the removed file
    second.forget(later(node), 1)
    assert learn(second, upper, b"/file") == later(node)


def test_a_removed_file_that_the_kernel_has_forgotten_is_dropped(upper: Upper) -> None:
    status, memory = make(upper, b"/file"), bytearray(BYTES)
    node = UPPER | status.st_ino
    first = after_takeover(upper, memory)
    first.removed(node, (ROOT_ID, b"file"), status)  # the kernel never had it
    assert learn(first, upper, b"/file") == node
    first.removed(node, (ROOT_ID, b"file"), status)
    assert first.path(node) is None
    first.forget(node, 1)
    assert first.path(node) == b"/file"
    assert first.remember(node, ROOT_ID, b"file", new=True) == (node, 0)


@repeated
def test_a_later_file_that_is_found_before_the_removal_is_recorded_stays(
    table: NodeTable, upper: Upper
) -> None:
    status = make(upper, b"/first")
    node = learn(table, upper, b"/first")
    remade(upper, b"/first", b"/second")
    newest = learn(table, upper, b"/second")
    table.removed(node, (ROOT_ID, b"first"), status)
    assert (newest, table.path(newest)) == (later(node), b"/second")


def test_a_file_that_has_another_name_is_not_removed(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/first")
    upper.at(b"/first").link(upper.at(b"/second"))
    node = learn(table, upper, b"/first")
    table.removed(node, (ROOT_ID, b"first"), upper.at(b"/first").lstat())
    assert learn(table, upper, b"/second") == node
    assert table.path(node) == b"/second"


@repeated
def test_a_node_whose_file_others_removed_is_no_later_file_of_its_inode(
    table: NodeTable, upper: Upper
) -> None:
    """The node demotes files, and gateways replace them: the session learns of it later."""
    make(upper, b"/first")
    node = learn(table, upper, b"/first")
    remade(upper, b"/first", b"/second")
    assert table.path(node) is None


@repeated
def test_a_later_file_of_an_inode_is_another_node(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/first")
    node = learn(table, upper, b"/first")
    assert learn(table, upper, b"/first") == node
    upper.at(b"/first").rename(upper.at(b"/moved"))
    assert learn(table, upper, b"/moved") == node
    remade(upper, b"/moved", b"/second")
    assert learn(table, upper, b"/second") == later(node)
    assert [table.path(each) for each in (node, later(node))] == [None, b"/second"]


@repeated
def test_a_later_file_shows_the_number_of_its_own_copy(table: NodeTable, upper: Upper) -> None:
    make(upper, b"/first")
    upper.at(b"/first").setxattr(MARKS.lower_id, b"98")
    node = learn(table, upper, b"/first")
    remade(upper, b"/first", b"/second")
    upper.at(b"/second").setxattr(MARKS.lower_id, b"99")
    assert learn(table, upper, b"/second") == later(node)
    assert table.numbers == {node: 98, later(node): 99}


@repeated
def test_a_file_that_is_replaced_after_its_status_was_read_is_looked_up_again(
    table: NodeTable, upper: Upper
) -> None:
    """A lookup reads the status first. Its name must not lead to the file that has the number meanwhile."""
    make(upper, b"/first")
    status = upper.at(b"/first").lstat()
    remade(upper, b"/first", b"/second")
    with pytest.raises(ReplacedError):
        table.remember(table.node_of(b"/first", status), ROOT_ID, b"first", file=b"/first")
    other = make(upper, b"/first")
    with pytest.raises(ReplacedError):
        table.remember(table.node_of(b"/first", status), ROOT_ID, b"first", file=b"/first")
    assert learn(table, upper, b"/first") == UPPER | other.st_ino


@repeated
def test_an_open_file_is_the_later_one_of_its_name_and_inode(table: NodeTable, upper: Upper) -> None:
    """Without that, a rename by another session would take the open file for one that was removed."""
    make(upper, b"/file")
    node = learn(table, upper, b"/file")
    remade(upper, b"/file", b"/file")
    fd = upper.at(b"/file").open(os.O_RDONLY)
    table.opened(node, fd)
    os.close(fd)
    upper.at(b"/file").rename(upper.at(b"/moved"))
    assert table.path(node) == b"/moved"
    assert learn(table, upper, b"/moved") == node
