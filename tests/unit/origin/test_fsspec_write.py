"""Writes through a driver of fsspec whose renames fail: neither the old file nor the new one may be lost."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from headrace.base.errors import HeadraceError, OriginUnavailableError
from headrace.base.model import Attributes
from headrace.origin.fsspec_adapter import FsspecOrigin
from headrace.origin.source import BytesPutSource
from tests.conformance.origin.origin_suite import soon

pytestmark = pytest.mark.real_time  # the loop waits for threads of the origin's own

OLD, NEW = b"old bytes", b"new"


class FailingRenames(LocalFileSystem):  # type: ignore[misc]
    """The local driver. plan: what each of the next renames does; `over` refuses to replace a file, `lost` renames and
    loses the response, `down` fails, "" succeeds."""

    plan: list[str]

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        mode = self.plan.pop(0) if self.plan else ""
        if mode == "down":
            raise ConnectionResetError(errno.ECONNRESET, "by plan")
        if mode == "over" and os.path.exists(path2):
            raise OSError("Failure")  # as SFTP says it
        super().mv(path1, path2, **kwargs)
        if mode == "lost":
            raise ConnectionResetError(errno.ECONNRESET, "by plan")


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def put(folder: Path, plan: list[str]) -> HeadraceError | None:
    """Replace the file, and return the error of the put."""
    (folder / "f").write_bytes(OLD)
    files = FailingRenames(skip_instance_cache=True)
    files.plan = plan
    origin = FsspecOrigin("local://folder", lambda: (files, str(folder)))
    try:
        await origin.put("f", BytesPutSource(NEW), condition=None, attributes=Attributes(), deadline=soon())
    except HeadraceError as error:
        return error
    finally:
        await origin.close()
    return None


@pytest.mark.parametrize(
    "plan",
    [["lost"], ["down"], ["over"], ["over", "lost"], ["over", "", "lost"]],
    ids=lambda plan: "-".join(plan),
)
async def test_a_rename_that_takes_place_in_the_end_is_a_put(tmp_path: Path, plan: list[str]) -> None:
    assert await put(tmp_path, plan) is None
    assert files_in(tmp_path) == {"f": NEW}


@pytest.mark.parametrize("plan", [["over", "down"], ["over", "", "down"]], ids=lambda plan: "-".join(plan))
async def test_a_rename_that_failed_leaves_the_old_file(tmp_path: Path, plan: list[str]) -> None:
    assert isinstance(await put(tmp_path, plan), OriginUnavailableError)
    assert files_in(tmp_path) == {"f": OLD}


async def test_a_connection_that_stays_broken_loses_no_file(tmp_path: Path) -> None:
    assert isinstance(await put(tmp_path, ["over", "", "down", "down"]), OriginUnavailableError)
    assert OLD in files_in(tmp_path).values()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.ESTALE, "Stale file handle"),
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    ],
    ids=lambda error: type(error).__name__ + str(error.errno),
)
async def test_a_network_that_is_away_is_an_origin_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """It may be back in a moment, so a reader waits for it."""

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(FailingRenames, "info", fail)
    files = FailingRenames(skip_instance_cache=True)
    origin = FsspecOrigin("local://folder", lambda: (files, str(tmp_path)))
    with pytest.raises(OriginUnavailableError):
        await origin.head("f", deadline=soon())
    await origin.close()
