"""Other users of a host come to these (findings 5 and 14): nothing below the cache, run and log folders; and, by
descriptors of the node's, what the modes in the mount let them read, in a way that lets them change nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host
from tests.security.nobody import LIBRARY, NOBODY, WALK, as_nobody, below

RACES, RACE_S = 300, 0.004


@pytest.fixture(scope="module")
def open_host(shared_base: Path) -> Iterator[Host]:
    """A node that has cached, been written to, and persisted; its mount is open to others."""
    base = shared_base / "open"
    base.mkdir()
    host = Host(base)
    for number in range(40):
        host.put(f"d/{number}", 3000 + number)
    host.put("large", (40 << 20) + 7)
    host.put("small", 100_000)
    host.up(host.truth, host.mount, "--allow-other", "--write", "off,/w=back,/keep=local")
    host.ok("load", "/d")
    for folder in ("w", "keep"):
        directory = host.mount / folder
        _as_others_do(directory)
    host.ok("persist", "/w")
    yield host
    host.close()


def _as_others_do(directory: Path) -> None:
    """Files and folders with modes that mean something."""
    os.makedirs(directory, exist_ok=True)
    (directory / "open").write_bytes(b"everybody's")
    (directory / "closed").write_bytes(b"patient record 4711")
    (directory / "closed").chmod(0o600)
    (directory / "theirs").write_bytes(b"nobody's own")
    os.chown(directory / "theirs", NOBODY, NOBODY)
    (directory / "theirs").chmod(0o600)
    (directory / "folder").mkdir(mode=0o700)
    (directory / "folder/inner").write_bytes(b"behind a closed folder")
    (directory / "dark").mkdir()
    (directory / "dark/known").write_bytes(b"who knows the name")
    (directory / "dark").chmod(0o711)


def test_nothing_below_cache_and_run_folders_is_read_or_changed(open_host: Host) -> None:
    paths = below(open_host.cache, open_host.run_folder)
    assert len([path for path in paths if Path(path).parent.parent == open_host.cache / "files"]) >= 40
    assert {"capacity", "data.mdb", "known.db", "closed"} <= {Path(path).name for path in paths}
    reached = as_nobody(WALK, paths=paths)
    assert [row for row in reached if row[1] not in map(str, (open_host.cache, open_host.run_folder))] == []
    # the folders themselves can be named, as any name in a directory that can be listed
    assert {name for name, _ in reached} == {"path"}


def test_no_file_of_the_cache_means_anything_without_the_folder_s_mode(open_host: Host) -> None:
    """Whoever holds a descriptor of a cache file, or its folder by mistake of an operator, still can't change it."""
    for path in map(Path, below(open_host.cache)):
        status = path.lstat()
        if "/upper/tree" not in str(path) and not stat.S_ISLNK(status.st_mode):
            assert stat.S_IMODE(status.st_mode) & 0o077 == 0, path
            assert status.st_uid == 0, path


def test_the_library_of_another_user_reads_what_modes_let_it(open_host: Host) -> None:
    outcomes = as_nobody(
        """
cache = headrace.connect(socket=address)
digest = lambda data: hashlib.sha256(data).hexdigest()
files = [f"/d/{number}" for number in range(40)] + ["/large"]
with cache.open("/large") as stream:
    stream.seek(39 << 20)
    end = stream.read()
result = {
    "kind": type(cache._vfs).__name__,
    "names": sorted(entry.path for entry in cache.list("/")),
    "listed": len(list(cache.list("/d"))),
    "small": digest(cache.read("/small")),
    "large": digest(cache.map("/large")),
    "end": digest(end),
    "many": [digest(part.data) for part in cache.read_many(files)],
    "open": [cache.read(f"/{top}/open").decode() for top in ("w", "keep")],
    "theirs": cache.read("/keep/theirs").decode(),
    "known": cache.read("/keep/dark/known").decode(),
    "refused": [refused(lambda: cache.read(path)) for path in (
        "/keep/closed", "/w/closed", "/keep/folder/inner", "/w/folder/inner", "/nothing", "/d", "/small/x")],
    "hidden": [refused(lambda: list(cache.list(path))) for path in ("/keep/folder", "/w/folder", "/keep/dark")],
    "change": [refused(call) for call in (
        lambda: cache.put("/w/new", b""), lambda: cache.remove("/w/open"), lambda: cache.rename("/small", "/s"),
        lambda: cache.make_directory("/w/new"), lambda: cache.load("/"), lambda: cache.free("/"),
        lambda: cache.status())],
}
""",
        imports=LIBRARY,
        address=_socket(open_host),
    )
    truth = {
        name: hashlib.sha256((open_host.truth / name).read_bytes()).hexdigest() for name in open_host.names()
    }
    large = (open_host.truth / "large").read_bytes()
    assert outcomes == {
        "kind": "BrokeredVfs",
        "names": ["/d", "/keep", "/large", "/small", "/w"],
        "listed": 40,
        "small": truth["small"],
        "large": truth["large"],
        "end": hashlib.sha256(large[39 << 20 :]).hexdigest(),
        "many": [truth[f"d/{number}"] for number in range(40)] + [truth["large"]],
        "open": ["everybody's"] * 2,
        "theirs": "nobody's own",
        "known": "who knows the name",
        "refused": ["NotAllowedError"] * 4
        + ["PathNotFoundError", "IsADirectoryPathError", "NotADirectoryPathError"],
        "hidden": ["NotAllowedError"] * 3,
        "change": ["NotAllowedError"] * 7,
    }


def test_fsspec_loaders_and_models_go_on_working(open_host: Host) -> None:
    outcomes = as_nobody(
        """
digest = lambda data: hashlib.sha256(data).hexdigest()
system = fsspec.filesystem("headrace", socket=address)
place = headrace.sdk.folder.open_folder("headrace:///d", socket=address)
files, name = headrace.sdk.folder.open_folder_or_file("headrace:///large", socket=address)
mounted, other = headrace.sdk.folder.open_folder_or_file(mount + "/large")
cancel = headrace.base.cancel.Cancel()
result = {
    "cat": digest(system.cat("/small")),
    "find": len(system.find("/d")),
    "place": [digest(data) for data in place.read_many(["3", "5"])],
    "names": len(place.names()),
    "whole": digest(files.fetch(name, cancel)),
    "mounted": digest(mounted.fetch(other, cancel)),
}
""",
        imports=LIBRARY
        + "import fsspec, headrace.integrations.fsspec, headrace.sdk.folder; "
        + "import headrace.base.cancel",
        address=_socket(open_host),
        mount=str(open_host.mount),
    )
    truth = {
        name: hashlib.sha256((open_host.truth / name).read_bytes()).hexdigest() for name in open_host.names()
    }
    assert outcomes == {
        "cat": truth["small"],
        "find": 40,
        "place": [truth["d/3"], truth["d/5"]],
        "names": 40,
        "whole": truth["large"],
        "mounted": truth["large"],
    }


def test_a_descriptor_can_only_be_read(open_host: Host) -> None:
    """Else a user writes into what all others read: open(2) by /proc asks the modes of the cache file, and so on."""
    errors = as_nobody(
        """
content = headrace.connect(socket=address).content("/small")
fd = content.fd
at_fd = f"/proc/self/fd/{fd}"
result = [refused(call) for call in (
    lambda: os.open(at_fd, os.O_WRONLY), lambda: os.open(at_fd, os.O_RDWR), lambda: os.write(fd, b"x"),
    lambda: os.ftruncate(fd, 0), lambda: os.truncate(at_fd, 0), lambda: os.fchmod(fd, 0o666),
    lambda: os.fchown(fd, 65534, 65534), lambda: os.utime(fd), lambda: os.setxattr(fd, "user.x", b"x"),
    lambda: os.link(at_fd, f"/tmp/headrace-stolen-{os.getpid()}", follow_symlinks=True),
    lambda: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK), lambda: mmap.mmap(fd, 100, mmap.MAP_SHARED),
    lambda: os.getxattr(fd, "trusted.headrace.extras"),
)]
""",
        imports=LIBRARY + "import fcntl",
        address=_socket(open_host),
    )
    assert set(errors) <= {"PermissionError", "OSError"}, errors


def test_a_mount_that_is_closed_to_others_has_no_door_for_them(host: Host) -> None:
    host.put("a", 100)
    host.up()
    assert list(host.base.glob("run.public/*")) == []
    closed = as_nobody(
        "connected = refused(lambda: headrace.connect(socket=address))"
        + WALK
        + "result = [connected, result]",
        imports=LIBRARY,
        address=_socket(host),
        paths=[str(host.mount), f"{host.mount}/a"],
    )
    assert closed == ["NodeUnavailableError", [["path", str(host.mount)]]]


def test_a_mode_stays_what_it_was(host: Host) -> None:
    """After persisting, after the file left the layer for the cache, and after a restart."""
    host.put("a", 100)
    for step in ("written", "persisted", "demoted", "restarted"):
        if step in ("written", "restarted"):
            up = host.up(host.truth, host.mount, "--allow-other", "--write", "back")
        if step == "written":
            (host.mount / "secret").write_bytes(b"patient record 4711")
            (host.mount / "secret").chmod(0o600)
        if step == "persisted":
            host.ok("persist", "/")
        if step == "demoted":
            host.ok("load", "/")
            assert not (host.cache / "upper/tree/secret").exists()
        paths = [f"{host.mount}/secret", *below(host.cache)]
        reached, read = as_nobody(
            "read = refused(lambda: headrace.connect(socket=address).read('/secret'))"
            + WALK
            + "result = [result, read]",
            imports=LIBRARY,
            address=_socket(host),
            paths=paths,
        )
        named = [["path", f"{host.mount}/secret"], ["path", str(host.cache)]]
        assert (reached, read) == (named, "NotAllowedError"), step
        assert stat.S_IMODE((host.mount / "secret").stat().st_mode) == 0o600, step
        if step == "demoted":
            host.ok("down", str(host.mount))
            assert up.wait() == 0
    host.ok("down", str(host.mount))


def _socket(host: Host) -> str:
    """Return the node's socket, which others can't reach. By it, the library finds the one for them."""
    (socket,) = host.run_folder.glob("*.sock")
    return str(socket)


def test_a_folder_that_root_makes_again_is_not_whose_the_removed_one_was(open_host: Host) -> None:
    """Its mark of a removed folder of the origin had their owner still."""
    again = open_host.mount / "w/again"
    again.mkdir()
    os.chown(again, NOBODY, NOBODY)
    open_host.ok("persist", "/w")
    again.rmdir()
    again.mkdir()
    program = "result = refused(lambda: os.mkdir(path + '/theirs')), refused(lambda: os.chmod(path, 0o777))"
    assert as_nobody(program, path=str(again)) == ["PermissionError", "PermissionError"]
    assert again.stat().st_uid == 0


def test_a_file_is_not_opened_by_who_meant_to_create_it(open_host: Host) -> None:
    """In a directory like /tmp, root creates files through another mount at the moment at which this user creates the
    same names: the kernel checks no rights of a file that it takes for new."""
    second, common = open_host.base / "second", open_host.mount / "keep/common"
    common.mkdir()
    common.chmod(0o1777)
    second.mkdir()
    mounted = open_host.start("fuse", second, "--allow-other")
    mounted.wait_ready()
    begin_s = time.time() + 3.0  # both have begun by then, or only one creates
    created: list[str] = []

    def create_all() -> None:
        for number in range(RACES):
            time.sleep(max(0.0, begin_s + number * RACE_S - time.time()))  # the moment of the race
            with contextlib.suppress(FileExistsError):
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
                fd = os.open(second / f"keep/common/{number}", flags, 0o600)
                os.write(fd, b"secret")
                os.close(fd)
                created.append(str(number))

    creating = threading.Thread(target=create_all)
    creating.start()
    opened: list[str] = as_nobody(
        """
import time
result = []
for number in range(races):
    time.sleep(max(0.0, begin_s + number * race_s - time.time()))
    try:
        os.close(os.open(f"{common}/{number}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o666))
        result.append(str(number))
    except PermissionError:
        pass
""",
        common=str(common),
        begin_s=begin_s,
        races=RACES,
        race_s=RACE_S,
    )
    creating.join()
    assert not set(created) & set(opened)
    assert len(created) + len(opened) == RACES
    assert all((common / name).read_bytes() == b"secret" for name in created)
    open_host.ok("down", str(second))
