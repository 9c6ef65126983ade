"""Findings 1, 3 and 21: whoever may change names in the upper layer leads no interface out of it.

Each interface is asked for paths that are sometimes the user's own file, and sometimes a link to root's. The links of
the layer lead out of the namespace, so it is right to refuse those; the user's files must be read and changed.
HEADRACE_EXAMPLES is how many seconds each attack goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from http.client import IncompleteRead
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError

from headrace.base.beneath import EXCHANGE
from headrace.base.errors import HeadraceError
from headrace.base.model import Version
from headrace.checkpoint.posix_storage import PosixReader, PosixStorage
from headrace.integrations.fsspec import HeadraceFileSystem
from headrace.overlay.snapshot import EntryType, Snapshot, take
from headrace.overlay.syscalls import rename
from headrace.overlay.upper import Upper
from headrace.sdk.cache import cache_over
from headrace.sdk.namespace import open_local_vfs
from headrace.vfs.client_registry import HOSTS
from headrace.vfs.local_vfs import LocalVfs
from headrace.writeback.demotion import checksums_of, remove_clean_file
from headrace.writeback.replication.replica_layer import ReplicaLayer
from headrace.writeback.sync_journal import JournalRecord
from tests.integration.cli.host import Host
from tests.integration.door.rest.conftest import Api, serving
from tests.integration.door.s3 import conftest as s3_host
from tests.integration.door.webhdfs import conftest as webhdfs_host
from tests.security.exchanging import (
    CLOSED,
    MINE,
    SECRET,
    USER,
    Canary,
    exchange_for_ever,
    exchanging,
    for_a_while,
    make_trap,
    user,
)

pytestmark = pytest.mark.root
NAMES = ("d/f", "x")


@pytest.fixture
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_host.S3]:
    with s3_host.serving(tmp_path_factory.mktemp("s3")) as served:
        yield served


@pytest.fixture
def webhdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webhdfs_host.WebHdfs]:
    with webhdfs_host.serving(tmp_path_factory.mktemp("webhdfs")) as served:
        yield served


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path)


def below(host: Host, name: str) -> Path:
    """Return where /out/NAME lies in the layer."""
    return host.cache / "upper/tree/out" / name


def assert_harmless(data: bytes) -> bool:
    """Return whether it is what the user wrote, perhaps with more behind it."""
    assert SECRET not in data
    return data.startswith(MINE)


# ------------------------------------------------------------ gateways


def test_s3(s3: s3_host.S3, canary: Canary) -> None:
    client = s3.client()

    def attempt(work: Callable[[], object]) -> None:
        with contextlib.suppress(ClientError, ResponseStreamingError):
            work()

    def change(key: str, number: int) -> None:
        new = f"race/d/new-{number}"
        attempt(lambda: client.put_object(Bucket="out", Key=new, Body=b"new"))
        attempt(lambda: client.copy_object(Bucket="out", Key="copy", CopySource=f"out/{key}"))
        attempt(lambda: assert_harmless(client.get_object(Bucket="out", Key="copy")["Body"].read()))
        attempt(lambda: client.delete_object(Bucket="out", Key=new))

    def step(number: int) -> bool:
        key = f"race/{NAMES[number % 2]}"
        if number % 10 == 0:
            change(key, number)
        with contextlib.suppress(ClientError):
            for row in client.list_objects_v2(Bucket="out", Prefix="race/d/").get("Contents", []):
                assert CLOSED not in row["Key"]
        with contextlib.suppress(
            ClientError, ResponseStreamingError
        ):  # a body ends early if its file is written
            return assert_harmless(client.get_object(Bucket="out", Key=key)["Body"].read())
        return False

    with exchanging(below(s3.host, "race"), canary):
        for_a_while(step)


def test_webhdfs(webhdfs: webhdfs_host.WebHdfs, canary: Canary) -> None:
    def step(number: int) -> bool:
        path = f"/out/race/{NAMES[number % 2]}"
        mode = webhdfs.ask("PUT", path, "SETPERMISSION", permission="666").status_code
        owner = webhdfs.ask("PUT", path, "SETOWNER", owner=str(USER), group=str(USER)).status_code
        first = webhdfs.ask("POST", path, "APPEND")
        if first.status_code == 307:
            with contextlib.suppress(AssertionError):
                webhdfs.append(path, b"evil::0:0::/root:/bin/sh")
        webhdfs.ask("GET", path, "GETXATTRS", encoding="text")
        assert CLOSED not in webhdfs.ask("GET", "/out/race/d", "LISTSTATUS").text
        body = webhdfs.ask("GET", path, "OPEN")
        return assert_harmless(body.content) and (mode, owner) != (500, 500)

    with exchanging(below(webhdfs.host, "race"), canary):
        for_a_while(step)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    (tmp_path / "rest").mkdir()
    with serving(tmp_path / "rest", write="/out=back,off") as api:
        yield api


def test_rest(api: Api, canary: Canary) -> None:
    def step(number: int) -> bool:
        path = f"/out/race/{NAMES[number % 2]}"
        api.ask("PUT", f"/v1/content?path=/out/race/d/new-{number % 50}", body=b"new")
        api.ask("DELETE", f"/v1/entry?path=/out/race/d/new-{number % 50}")
        api.ask("GET", f"/v1/entry?path={path}")
        assert CLOSED not in api.ask("GET", "/v1/entries?path=/out/race/d").body.decode()
        with contextlib.suppress(IncompleteRead):  # a body ends early if its file is written
            return assert_harmless(api.ask("GET", f"/v1/content?path={path}").body)
        return False

    with exchanging(below(api.host, "race"), canary):
        for_a_while(step)


# ------------------------------------------------------------ library, persisting


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, LocalVfs]]:
    """A node that persists at once, and the library."""
    (tmp_path / "host").mkdir()
    (tmp_path / "origin").mkdir()
    host = Host(tmp_path / "host", write="/out=back,off", persist_delay_s=0.02)
    try:
        config = tmp_path / "config.toml"
        config.write_text(f'[mounts."/out"]\nurl = "{tmp_path / "origin"}"\n')
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
        for name in ("HEADRACE_RUN_FOLDER", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, host.environment[name])
        HeadraceFileSystem.clear_instance_cache()
        HOSTS.close()
        vfs = open_local_vfs(patience_s=10)
        yield host, vfs
        HOSTS.close()
    finally:
        host.close()


def test_the_library(paths: tuple[Host, LocalVfs], canary: Canary) -> None:
    host, here = paths

    def attempt(work: Callable[[], object]) -> None:
        with contextlib.suppress(HeadraceError, OSError):
            work()

    def append(path: bytes) -> None:
        with here.append(path) as stream:
            stream.write(b", and more")

    def put(path: bytes) -> None:
        with here.create(path, replace=True) as stream:
            stream.write(b"new")

    def step(number: int) -> bool:
        path, new = b"/out/race/" + NAMES[number % 2].encode(), b"/out/race/d/new-%d" % (number % 50)
        attempt(lambda: append(path))
        attempt(lambda: put(new))
        attempt(lambda: here.rename(new, new + b"-moved"))
        attempt(lambda: here.remove(new + b"-moved"))
        attempt(lambda: here.touch(path))
        attempt(lambda: here.edit_entry(path, lambda place: os.chmod(place, 0o666)))
        attempt(lambda: here.edit_entry(path, lambda place: os.chown(place, USER, USER)))
        attempt(lambda: here.edit_attributes(path, lambda fd: os.setxattr(fd, "trusted.headrace.s3", b"x")))
        attempt(lambda: here.make_directory(b"/out/race/d/folder"))
        attempt(lambda: here.remove_all(b"/out/race/d/folder"))
        with contextlib.suppress(HeadraceError, OSError):
            assert CLOSED.encode() not in [name for name, _ in here.children(b"/out/race/d")]
        with contextlib.suppress(HeadraceError, OSError):
            content = here.content(path)
            try:
                return assert_harmless(content.read(0, content.size_bytes))
            finally:
                content.close()
        return False

    with exchanging(below(host, "race"), canary):
        for_a_while(step)


def test_what_is_persisted(paths: tuple[Host, LocalVfs], canary: Canary) -> None:
    """By the node, in mode back: no interface is asked for anything but to persist now."""
    host, here = paths
    origin = host.base.parent / "origin"

    def step(number: int) -> bool:
        with here.create(b"/out/honest-%d" % number, replace=True) as stream:
            stream.write(MINE)
        with contextlib.suppress(HeadraceError):  # it is told of what changed while it was persisted
            cache_over(here).persist("/out")
        for path in origin.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    assert_harmless(path.read_bytes())
        honest = origin / f"honest-{number}"
        return honest.exists() and honest.read_bytes() == MINE

    with exchanging(below(host, "race"), canary):
        for_a_while(step)


# ------------------------------------------------------------ layers and their copies


@pytest.fixture
def upper(tmp_path: Path) -> Upper:
    upper = Upper(str(tmp_path / "upper"))
    upper.make()
    return upper


def test_snapshots_for_other_nodes(tmp_path: Path, upper: Upper, canary: Canary) -> None:
    def step(number: int) -> bool:
        path = b"/race/" + NAMES[number % 2].encode()
        with contextlib.suppress(OSError):
            snapshot = take(path, upper.at(path), upper.base_of(path))
            return snapshot.shape == EntryType.FILE and assert_harmless(snapshot.content)
        return False

    with exchanging(tmp_path / "upper/tree/race", canary):
        for_a_while(step)


def test_copies_that_are_placed(tmp_path: Path, canary: Canary) -> None:
    """In the layer of the copies, whoever could change names there."""
    mirror = ReplicaLayer(str(tmp_path / "mirror"))
    mirror.make()
    race = tmp_path / "mirror/tree/race"

    def step(number: int) -> bool:
        new = b"/race/d/%d" % number
        snapshots = [
            Snapshot(new, EntryType.FILE, size_bytes=3, content=b"new", mode=0o4777, uid=USER, gid=USER),
            Snapshot(b"/race/d", EntryType.DIRECTORY, mode=0o777, uid=USER, gid=USER),
            Snapshot(b"/race/d/way", EntryType.WHITEOUT),
            Snapshot(new, EntryType.GONE),
            Snapshot(b"/race/d/f", EntryType.GONE),
        ]
        done = 0
        for snapshot in snapshots:
            with contextlib.suppress(OSError):
                mirror.place(snapshot)
                done += 1
        if not any(os.path.islink(race / name) for name in "dl"):
            with contextlib.suppress(OSError):
                shutil.rmtree(race / "l")
                (race / "l").symlink_to(canary.folder)
        return done == len(snapshots)

    with exchanging(race, canary):
        for_a_while(step)


def row_of(path: Path, name: bytes) -> JournalRecord:
    status = path.lstat()
    version = Version(status.st_size, status.st_mtime_ns, "token")
    return JournalRecord(name, status.st_ino, status.st_ctime_ns, status.st_size, version)


def test_files_that_leave_the_layer(tmp_path: Path, upper: Upper, canary: Canary) -> None:
    """The user exchanges his directory just when all has been looked at."""
    honest = 0
    for number in range(20):
        trap = make_trap(tmp_path / f"upper/tree/race-{number}", canary)
        path = b"/race-%d/d/f" % number
        row = row_of(trap / "d/f", path)

        def exchanged(_: bytes, trap: Path = trap, number: int = number) -> bool:
            if number % 2:
                rename(str(trap / "d"), str(trap / "l"), EXCHANGE)
            return True

        assert checksums_of(upper.at(path), row) is not None
        with contextlib.suppress(OSError):
            honest += remove_clean_file(upper, row, exchanged, take=None) > 0
        canary.check()
    assert honest == 10


# ------------------------------------------------------------ the session


@pytest.mark.fuse
def test_the_session(tmp_path: Path, canary: Canary) -> None:
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host", write="/out=back,off", persist_delay_s=0.1)
    host.put("out/file", 10)
    read, write = os.pipe()
    try:
        host.up(host.truth, host.mount, "--allow-other")
        trap = make_trap(below(host, "race"), canary)
        (trap / "own").mkdir()
        os.chown(trap / "own", USER, USER)
        with user(lambda: use_the_mount(write), host.mount / "out/race"), user(exchange_for_ever, trap):

            def step(_: int) -> bool:
                sign = os.read(read, 1)
                assert sign in b"+-", "the session read, or showed, what is root's"
                return sign == b"+"

            for_a_while(step)
        canary.check()
    finally:
        os.close(read)
        os.close(write)
        host.close()


def use_the_mount(report: int) -> None:
    """Use it as its user does: the kernel believes that the files are his. Report + for what worked, - for what did
    not, and ! for a success that must not be."""
    number = 0
    while True:
        number += 1
        sign = b"-"
        for name in ("d/f", "x"):
            for change in (
                lambda name=name: os.chmod(name, 0o666, follow_symlinks=True),
                lambda name=name: os.utime(name),
                lambda name=name: os.truncate(name, len(MINE)),
                lambda name=name: os.setxattr(name, "user.mine", b"x"),
                lambda name=name: os.chown(name, -1, USER),
                lambda: os.mkdir(f"d/new-{number}"),  # noqa: B023
                lambda: os.rmdir(f"d/new-{number}"),  # noqa: B023
                lambda: os.rename("d/f", "d/g"),
                lambda: os.rename("d/g", "d/f"),
            ):
                with contextlib.suppress(OSError):
                    change()  # type: ignore[no-untyped-call]
            with contextlib.suppress(OSError), open(name, "rb") as file:
                data = file.read()
                sign = b"!" if SECRET in data else b"+" if data.startswith(MINE) else sign
        with contextlib.suppress(OSError):
            sign = b"!" if CLOSED in os.listdir("d") else sign
        with open(f"own/{number % 50}", "wb") as file:
            file.write(b"own")
        os.write(report, sign)


# ------------------------------------------------------------ checkpoints


def test_restoring_and_saving_checkpoints(tmp_path: Path, canary: Canary) -> None:
    """By root, in a directory that the user may write to: `packs` changes places with a link to root's directory."""
    place = PosixStorage(str(tmp_path / "run/race"))

    def step(number: int) -> bool:
        done = 0
        for work in (
            lambda: assert_harmless(place.read("d/f", bytes_max=4096)),
            lambda: read_by(place.open("x")),
            lambda: place.create(f"d/new-{number}").close(),
            lambda: place.claim(f"d/claim-{number}", b"claim").release(),
            lambda: place.make_folder(f"d/folder-{number}/below"),
            lambda: place.remove_folder(f"d/folder-{number}/below"),
            lambda: place.remove_folder(f"d/folder-{number}"),
            lambda: place.rename(f"d/new-{number}", f"d/old-{number}"),
            lambda: place.remove(f"d/old-{number}"),
            lambda: place.remove(f"d/claim-{number}"),
        ):
            with contextlib.suppress(HeadraceError):
                work()
                done += 1
        with contextlib.suppress(HeadraceError):
            assert CLOSED not in place.names("d")
        return done > 3

    with exchanging(tmp_path / "run/race", canary):
        for_a_while(step)


def read_by(source: PosixReader) -> None:
    target = bytearray(len(SECRET))
    try:
        source.read_into(memoryview(target), 0)
    except HeadraceError:  # it is shorter
        pass
    finally:
        source.close()
    assert_harmless(bytes(target))
