"""`read_many` of many small files that are not cached: asked for in groups, given out one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.base.errors import NodeUnavailableError
from headrace.sdk.cache import Cache
from tests.integration.cli.host import Up
from tests.integration.door.conftest import Host, forget, start

pytestmark = pytest.mark.timeout(90)

COUNT = 700
"""More than are under way at once."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One node for all tests of the module. It reads no file by itself that a test has freed or removed."""
    with pytest.MonkeyPatch.context() as patch:
        host = start(tmp_path_factory.mktemp("many"), patch, predict_reads=False)
        for number in range(COUNT):
            host.put(f"many/d{number % 3}/f{number}", 100 + 37 * number)
        yield host
        forget()
        host.close()


@pytest.fixture
def cache(host: Host) -> Iterator[Cache]:
    with headrace.connect() as cache:
        yield cache


@pytest.fixture
def truth(host: Host) -> dict[str, bytes]:
    """In no order that the origin has."""
    names = [f"many/d{number % 3}/f{number}" for number in range(COUNT)]
    random.Random(5).shuffle(names)
    return {f"/{name}": (host.truth / name).read_bytes() for name in names}


@pytest.mark.parametrize("ordered", [True, False])
def test_groups(cache: Cache, truth: dict[str, bytes], *, ordered: bool) -> None:
    cache.free("/")
    parts = list(cache.read_many(truth, ordered=ordered))
    assert {part.path: part.data for part in parts} == truth
    assert not ordered or [part.path for part in parts] == list(truth)
    assert {part.path: part.data for part in cache.read_many(truth, ordered=ordered)} == truth  # all cached


def test_some_are_cached_and_some_come_twice(cache: Cache, truth: dict[str, bytes]) -> None:
    cache.free("/")
    chance, paths = random.Random(6), list(truth)
    for path in chance.sample(paths, 200):
        cache.read(path)
    wanted = [path for path in chance.choices(paths, k=COUNT) for _ in range(2)]
    assert [part.data for part in cache.read_many(wanted)] == [truth[path] for path in wanted]


@pytest.mark.parametrize("ordered", [True, False])
def test_one_that_is_gone_is_not_the_others_trouble(
    host: Host, cache: Cache, truth: dict[str, bytes], *, ordered: bool
) -> None:
    cache.free("/")
    list(cache.walk("/many"))  # the index has the names
    gone = list(truth)[::50]
    for path in gone:
        (host.truth / path[1:]).unlink()
    try:
        parts = list(cache.read_many(truth, ordered=ordered, on_error="return"))
        assert sorted(part.path for part in parts if part.error is not None) == sorted(gone)
        assert {part.path: part.data for part in parts if part.error is None} == {
            path: body for path, body in truth.items() if path not in gone
        }
    finally:
        for path in gone:
            (host.truth / path[1:]).write_bytes(truth[path])
        host.ok("sync", "/")


def test_left_early(cache: Cache, truth: dict[str, bytes]) -> None:
    cache.free("/")
    for ordered in (True, False):
        parts = cache.read_many(truth, ordered=ordered)
        first = next(parts)
        assert first.data == truth[first.path]
        parts.close()  # type: ignore[attr-defined]
    assert [part.data for part in cache.read_many(truth)] == list(truth.values())


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Host]:
    """A host whose node may be killed."""
    forget()
    host = Host(tmp_path)
    (tmp_path / "config.toml").write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
    yield host
    forget()
    host.close()


def node_of(host: Host) -> Up:
    node = host.start("node", "run", "--config", host.base / "config.toml", "--cache", f"{host.cache}:1GiB")
    node.wait_ready()
    return node


def test_the_node_is_killed_meanwhile(alone: Host) -> None:
    bodies = [alone.put(f"f{number}", 5000 + number) for number in range(COUNT)]
    node = node_of(alone)
    with headrace.connect(socket=node.ready["socket"]) as cache:
        parts = cache.read_many([f"/f{number}" for number in range(COUNT)])
        first = next(parts)
        node.process.kill()
        node.wait()
        node_of(alone)
        assert [first.data, *(part.data for part in parts)] == bodies


def test_no_node_any_more(alone: Host) -> None:
    """Cached files are read on; for the rest an error comes, in its turn."""
    names = [f"/f{number}" for number in range(40)]
    bodies = [alone.put(name[1:], 300) for name in names]
    node = node_of(alone)
    with headrace.connect(socket=node.ready["socket"], patience_s=0.5) as cache:
        assert cache.read(names[3]) == bodies[3]
        assert len(list(cache.list("/"))) == len(names)
        node.process.kill()
        node.wait()
        parts = list(cache.read_many(names, on_error="return"))
    assert [number for number, part in enumerate(parts) if part.error is None] == [3]
    assert parts[3].data == bodies[3]
    assert {type(part.error) for part in parts} == {type(None), NodeUnavailableError}
