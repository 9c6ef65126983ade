"""Findings 1, 3 and 21: whoever may change names in the upper layer leads no interface out of it.

Each interface is asked for paths that are sometimes the user's own file, and sometimes a link to root's. The links of
the layer lead out of the namespace, so it is right to refuse those; the user's files must be read and changed.
HEADRACE_EXAMPLES is how many seconds each attack goes on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from headrace.base.errors import HeadraceError
from headrace.integrations.fsspec import HeadraceFileSystem
from headrace.sdk.paths import Paths
from headrace.sdk.shared import HOSTS
from tests.integration.cli.host import Host
from tests.integration.door.rest.conftest import Api, serving
from tests.integration.door.s3.conftest import S3, s3
from tests.integration.door.webhdfs.conftest import WebHdfs, webhdfs
from tests.security.exchanging import (
    MINE,
    SECRET,
    USER,
    Canary,
    exchanging,
    for_a_while,
)

__all__ = ["s3", "webhdfs"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have rights that can be lost")
NAMES = ("d/f", "x")


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path)


def below(host: Host, name: str) -> Path:
    """Where what is at /out/NAME lies in the layer."""
    return host.cache / "upper/tree/out" / name


def assert_harmless(data: bytes) -> bool:
    """Whether it is what the user wrote, perhaps with more behind it."""
    assert SECRET not in data
    return data.startswith(MINE)


# ------------------------------------------------------------ gateways


def test_s3(s3: S3, canary: Canary) -> None:
    client = s3.client()

    def step(number: int) -> bool:
        key, other = f"race/{NAMES[number % 2]}", f"race/d/new-{number % 50}"
        with contextlib.suppress(ClientError):
            client.put_object(Bucket="out", Key=other, Body=b"new")
        with contextlib.suppress(ClientError):
            client.copy_object(Bucket="out", Key=f"copy-{number}", CopySource=f"out/{key}")
            assert_harmless(client.get_object(Bucket="out", Key=f"copy-{number}")["Body"].read())
        with contextlib.suppress(ClientError):
            client.delete_object(Bucket="out", Key=other)
        with contextlib.suppress(ClientError):
            for row in client.list_objects_v2(Bucket="out", Prefix="race/").get("Contents", []):
                assert row["Size"] != len(SECRET)
        with contextlib.suppress(ClientError):
            return assert_harmless(client.get_object(Bucket="out", Key=key)["Body"].read())
        return False

    with exchanging(below(s3.host, "race"), canary):
        for_a_while(step)


def test_webhdfs(webhdfs: WebHdfs, canary: Canary) -> None:
    def step(number: int) -> bool:
        path = f"/out/race/{NAMES[number % 2]}"
        mode = webhdfs.ask("PUT", path, "SETPERMISSION", permission="666").status_code
        owner = webhdfs.ask("PUT", path, "SETOWNER", owner=str(USER), group=str(USER)).status_code
        first = webhdfs.ask("POST", path, "APPEND")
        if first.status_code == 307:
            with contextlib.suppress(AssertionError):
                webhdfs.append(path, b"evil::0:0::/root:/bin/sh")
        for op in ("GETXATTRS", "GETFILESTATUS", "LISTSTATUS"):
            about = webhdfs.ask("GET", path, op, **({"encoding": "text"} if op == "GETXATTRS" else {}))
            assert f'"length":{len(SECRET)},' not in about.text.replace(" ", "")
        body = webhdfs.ask("GET", path, "OPEN")
        return assert_harmless(body.content) and (mode, owner) != (500, 500)

    with exchanging(below(webhdfs.host, "race"), canary):
        for_a_while(step)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with serving(tmp_path / "rest", write="/out=back,off") as one:
        yield one


def test_rest(api: Api, canary: Canary) -> None:
    def step(number: int) -> bool:
        path = f"/out/race/{NAMES[number % 2]}"
        api.ask("PUT", f"/v1/content?path=/out/race/d/new-{number % 50}", body=b"new")
        api.ask("DELETE", f"/v1/entry?path=/out/race/d/new-{number % 50}")
        api.ask("GET", f"/v1/entry?path={path}")
        api.ask("GET", "/v1/entries?path=/out/race/d")
        return assert_harmless(api.ask("GET", f"/v1/content?path={path}").body)

    with exchanging(below(api.host, "race"), canary):
        for_a_while(step)


# ------------------------------------------------------------ library, persisting


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Paths]]:
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
        from headrace.sdk.shared import reach

        found = reach(None, cache=None, socket=None, patience_s=10)
        assert isinstance(found, Paths)
        yield host, found
        HOSTS.close()
    finally:
        host.close()


def test_the_library(paths: tuple[Host, Paths], canary: Canary) -> None:
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
        attempt(lambda: here.alter(path, lambda at: os.chmod(at, 0o666)))
        attempt(lambda: here.alter(path, lambda at: os.chown(at, USER, USER)))
        attempt(lambda: here.dress(path, lambda fd: os.setxattr(fd, "trusted.headrace.s3", b"x")))
        attempt(lambda: here.make_directory(b"/out/race/d/folder"))
        attempt(lambda: here.remove_all(b"/out/race/d/folder"))
        for _, found in list(here.children(b"/out/race")):
            assert not isinstance(found, os.stat_result) or found.st_uid == USER
        with contextlib.suppress(HeadraceError, OSError):
            content = here.content(path)
            try:
                return assert_harmless(content.read(0, content.size_bytes))
            finally:
                content.close()
        return False

    with exchanging(below(host, "race"), canary):
        for_a_while(step)


def test_what_is_persisted(paths: tuple[Host, Paths], canary: Canary) -> None:
    """By the node, in mode back: no interface is asked for anything but to persist now."""
    host, here = paths
    origin = host.base.parent / "origin"

    def step(number: int) -> bool:
        with here.create(b"/out/honest-%d" % number, replace=True) as stream:
            stream.write(MINE)
        for _ in here.client.run_job("persist", "/out"):
            pass
        for path in origin.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):
                    assert_harmless(path.read_bytes())
        return (origin / f"honest-{number}").read_bytes() == MINE

    with exchanging(below(host, "race"), canary):
        for_a_while(step)
