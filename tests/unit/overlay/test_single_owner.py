"""The layer of a user without rights: what it keeps on disk, and what it shows."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.overlay.upper import Upper
from tests.security.nobody import as_user

pytestmark = pytest.mark.root

USER = 64991
IMPORTS = """
import contextlib, ctypes, encodings.idna, fcntl, unittest.mock
import headrace.base.libc
from headrace.base.model import Version
from headrace.overlay.given_mode import give_mode
from headrace.overlay.mark_names import MARKS
from headrace.overlay.hiding import hide, rename_leaving_whiteout
from headrace.overlay.marks import is_whiteout
from headrace.overlay.moves import clear_work
from headrace.overlay.upper import HIDDEN, Upper

libc = headrace.base.libc.c_library()

class Died(Exception):
    "What a killed process does not handle."

def opened():
    upper = Upper(folder)
    upper.make()
    return upper

def put(upper, path, text=b"x", mode=0o644):
    fd = upper.at(path).open(os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, text)
    give_mode(fd, mode)
    os.close(fd)

def text(upper, path):
    fd = upper.at(path).open(os.O_RDONLY)
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """Yield a place where another user may come to; a process of root made no file below."""
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to(tempfile.gettempdir()) and path != Path(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o011)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    os.chown(own, USER, USER)
    yield str(own / "upper")


def test_every_mode_is_shown_and_its_owner_reads_and_writes_on_disk(folder: str) -> None:
    program = """
upper, wrong = opened(), []
put(upper, b"/file")
upper.at(b"/folder").mkdir(0o700)
for mode in range(0o10000):
    for path, kind, needed in ((b"/file", stat.S_IFREG, 0o600), (b"/folder", stat.S_IFDIR, 0o700)):
        give_mode(upper.at(path), mode)
        kept = mode if kind == stat.S_IFDIR else mode & ~0o6000
        if upper.lookup(path).st_mode != kind | kept or upper.at(path).lstat().st_mode & needed != needed:
            wrong.append((path.decode(), oct(mode)))
        if is_whiteout(upper.at(path).lstat()) or upper.at(path).lstat().st_mode & 0o6000 & ~kept:
            wrong.append((path.decode(), oct(mode), "on disk"))
result = wrong
"""
    assert as_user(USER, program, imports=IMPORTS, folder=folder) == []


def test_what_is_removed_is_hidden_and_keeps_what_it_replaces(folder: str) -> None:
    program = """
upper, base = opened(), Version(5, 6, "tag")
put(upper, b"/file")
hide(upper, b"/file", base)
upper.at(b"/folder").mkdir(0o700)
put(upper, b"/folder/below", mode=0)
upper.mark_removed(b"/folder")
def names():
    return sorted((name.decode(), visible) for name, visible in upper.names(b"/").items())
result = [upper.lookup(b"/file") is HIDDEN, upper.lookup(b"/folder") is HIDDEN,
         upper.base_of(b"/file") == base, names(),
         upper.place(upper.at(b"/folder/below"), b"/file"), names(), text(upper, b"/file")]
"""
    assert as_user(USER, program, imports=IMPORTS, folder=folder) == [
        *[True, True, True],
        [["file", False], ["folder", False]],
        True,
        [["file", True], ["folder", False]],
        "x",
    ]


@pytest.mark.parametrize("over", ["nothing", "file", "whiteout"])
def test_a_rename_that_leaves_a_whiteout_survives_a_kill_at_each_step(folder: str, over: str) -> None:
    program = """
mock = unittest.mock
upper, base = opened(), Version(5, 6, "tag")
def run(steps):
    for name in upper.at(b"/").names():
        upper.at(b"/" + name).remove_tree()
    put(upper, b"/source", b"moved", 0o400)
    if over == "file":
        put(upper, b"/target", b"replaced")
    elif over == "whiteout":
        hide(upper, b"/target", None)
    calls = 0
    def step(plain):
        def call(*words, **named):
            nonlocal calls
            calls += 1
            if calls > steps:
                raise Died
            return plain(*words, **named)
        return call

    with contextlib.ExitStack() as stack:
        calls_of_system = [(os, name) for name in ("rename", "setxattr", "removexattr", "mknod", "chmod", "unlink")]
        for module, name in [*calls_of_system, (libc, "renameat2")]:
            stack.enter_context(mock.patch.object(module, name, step(getattr(module, name))))
        try:
            rename_leaving_whiteout(upper, b"/source", b"/target", base)
            ended = True
        except Died:
            ended = False
    with mock.patch("headrace.overlay.workdir.is_orphaned", lambda name: True):
        clear_work(upper)
    before = not isinstance(upper.lookup(b"/source"), type(HIDDEN))
    whole = text(upper, b"/source" if before else b"/target") == "moved"
    kept = before or upper.base_of(b"/source") == base
    return ended, before, whole and kept and upper.work.at(b"/").names() == []
result, steps = [], 0
while True:
    ended, before, right = run(steps)
    result.append([before, right])
    steps += 1
    if ended:
        break
"""
    results = as_user(USER, program, imports=IMPORTS, folder=folder, over=over)
    assert [right for _, right in results] == [True] * len(results)
    assert [before for before, _ in results] == sorted((before for before, _ in results), reverse=True)
    assert results[0][0] and not results[-1][0]


def test_a_mark_of_a_move_that_did_not_begin_moves_no_other_name_of_the_file(folder: str) -> None:
    program = """
mock = unittest.mock
upper = opened()
put(upper, b"/source", b"own")
put(upper, b"/target", b"other")
with mock.patch.object(libc, "renameat2", side_effect=Died), contextlib.suppress(Died):
    rename_leaving_whiteout(upper, b"/source", b"/target", None)
upper.at(b"/source").link(upper.new())
with mock.patch("headrace.overlay.workdir.is_orphaned", lambda name: True):
    moved = clear_work(upper)
result = [len(moved), text(upper, b"/source"), text(upper, b"/target"), upper.work.at(b"/").names()]
"""
    assert as_user(USER, program, imports=IMPORTS, folder=folder) == [0, "own", "other", []]


def test_marks_of_a_user_are_no_marks_of_root_and_the_reverse(folder: str, tmp_path: Path) -> None:
    as_user(USER, "upper = opened(); put(upper, b'/file'); result = 0", imports=IMPORTS, folder=folder)
    for path in [Path(folder), *Path(folder).rglob("*")]:
        os.lchown(path, 0, 0)
    os.chown(Path(folder).parent, 0, 0)
    with pytest.raises(UsageError, match="a user's node wrote its files, and root's can't read their marks"):
        Upper(folder).make()
    of_root = str(Path(folder).parent / "of-root")
    Upper(of_root).make()
    (Path(of_root) / "tree/file").touch()
    Upper(of_root).make()
    for path in [Path(folder).parent, Path(of_root), *Path(of_root).rglob("*")]:
        os.lchown(path, USER, USER)
    refused = "result = [refused(opened), os.listdir(folder + '/tree')]"
    assert as_user(USER, refused, imports=IMPORTS, folder=of_root) == ["UsageError", ["file"]]


def test_an_empty_layer_becomes_the_users(folder: str) -> None:
    program = """
opened().at(b"/file").mkdir(0o755)
result = [MARKS.single_owner, opened().at(b"/file").is_directory()]
"""
    assert as_user(USER, program, imports=IMPORTS, folder=folder) == [True, True]
    assert stat.S_IMODE((Path(folder) / "single-owner").stat().st_mode) == 0o600
