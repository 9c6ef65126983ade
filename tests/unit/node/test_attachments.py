"""An origin that is not attached after all is closed, so that its threads and connections end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import HeadraceError, OriginUnavailableError, PathExistsError, UsageError
from headrace.namespace.mounts import Mount
from headrace.node.attachments import Attachments
from headrace.origin.memory import MemoryOrigin
from headrace.testing.virtual_loop import pass_time


class CountingOrigin(MemoryOrigin):
    """closed: how many times it was closed. writable: False for an origin that can only be read."""

    closed = 0
    writable = True
    circuit = None

    async def close(self) -> None:
        self.closed += 1


class OneMountPoint:
    """Takes one mount."""

    def __init__(self) -> None:
        self.mounts: list[Mount] = []

    def attach(self, mount: Mount, **_: Any) -> None:
        self.mounts.append(mount)

    def detach(self, _: str) -> Mount:
        return self.mounts.pop()


class Parts:
    """Stands for what is told of each mount."""

    def add(self, *_: Any) -> None:
        return None

    remove = add


class NoMountPoints:
    """Has another mount at each path."""

    def attach(self, *_: Any, **__: Any) -> None:
        raise PathExistsError("mount /d")


def attachments(
    monkeypatch: pytest.MonkeyPatch, origin: CountingOrigin, check: Any, *, namespace: Any = None
) -> Attachments:
    """Return the attachments of a node that writes back. check: checks origins."""
    monkeypatch.setattr("headrace.node.attachments.build_origin", lambda *_: origin)
    monkeypatch.setattr("headrace.node.attachments.check_origin", check)
    config = SimpleNamespace(
        write="back", origin_timeout_s=60.0, sync_interval_s=60.0, allowed_origins="", mounts={}
    )
    parts: dict[str, Any] = {name: Parts() for name in ("paces", "events", "traces")}
    return Attachments(
        cast(Any, config),
        cast(Any, None),
        namespace or cast(Any, SimpleNamespace(mount_points=NoMountPoints())),
        cast(Any, None),
        **parts,
        has_written=lambda: False,
    )


async def has_names(*_: Any) -> bool:
    return True


async def is_away(*_: Any) -> bool:
    raise OriginUnavailableError("s3://b", why="no route")


async def answers_never(*_: Any) -> bool:
    return await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("check", "is_writable", "error"),
    [
        (is_away, True, OriginUnavailableError),
        (has_names, True, PathExistsError),
        (has_names, False, UsageError),
    ],
    ids=["away", "taken", "read-only"],
)
async def test_an_origin_that_is_refused_is_closed(
    monkeypatch: pytest.MonkeyPatch, check: Any, error: type[HeadraceError], *, is_writable: bool
) -> None:
    origin = CountingOrigin()
    origin.writable = is_writable
    with pytest.raises(error):
        await attachments(monkeypatch, origin, check)._attach("/d", "s3://b", {}, check=True)
    assert origin.closed == 1


async def test_an_origin_is_closed_whose_check_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = CountingOrigin()
    adding = attachments(monkeypatch, origin, answers_never)._attach("/d", "s3://b", {}, check=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await adding
    assert origin.closed == 1


async def test_a_mount_whose_caller_leaves_while_its_files_are_doubted_is_detached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No record has it yet: nobody could remove it, or add it again."""

    async def files_below(_: bytes) -> AsyncIterator[list[int]]:
        await asyncio.Event().wait()
        yield []

    monkeypatch.setattr("headrace.node.attachments.NamespaceOrigin", lambda origin: origin)
    origin, places = CountingOrigin(), OneMountPoint()
    namespace = SimpleNamespace(mount_points=places, tree=SimpleNamespace(files_below=files_below))
    node = attachments(monkeypatch, origin, has_names, namespace=namespace)
    adding = asyncio.ensure_future(node._attach("/d", "s3://b", {"verify": "open"}, check=True))
    await pass_time(1)
    assert len(places.mounts) == 1 and not adding.done()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert (places.mounts, origin.closed) == ([], 1)
