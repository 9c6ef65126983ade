"""Listings beside other clients, over a directory in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.base.errors import PathNotFoundError
from headrace.http.messages import parse_head
from headrace.webhdfs import status_ops
from headrace.webhdfs.routes import route
from headrace.webhdfs.status_ops import StatusOperations


class RemovedLinks:
    """Lists a directory of files and links. The links are removed when their names have been read."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        file, link = folder / "file", folder / "link"
        file.write_bytes(b"bytes")
        link.symlink_to("file")
        self._folder_stat = folder.stat()
        self._stats = {"file": file.stat(), "link": link.lstat()}
        self._names = names
        self.tree = SimpleNamespace(modes=SimpleNamespace(any=True))

    def find(self, path: bytes) -> tuple[bytes, os.stat_result]:
        return path, self._folder_stat

    def children(self, path: bytes, *, after: bytes = b"") -> Iterator[tuple[bytes, os.stat_result]]:
        for name in self._names:
            yield name.encode(), self._stats[name.partition("-")[0]]

    def get(self, path: bytes) -> tuple[bytes, os.stat_result]:
        raise PathNotFoundError(os.fsdecode(path))

    def readlink(self, path: bytes) -> bytes:
        raise PathNotFoundError(os.fsdecode(path))


@pytest.mark.parametrize(
    "names",
    [["file-a", "link-b", "file-c"], ["file-a", "file-b", "link-c", "link-d", "file-e"], ["link-a"], []],
)
@pytest.mark.parametrize("op", ["LISTSTATUS", "LISTSTATUS_BATCH"])
def test_a_link_that_is_removed_meanwhile_is_left_out(
    names: list[str], op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_ops, "BATCH", 2 if op == "LISTSTATUS" else 10)
    operations = StatusOperations(cast(Any, RemovedLinks(tmp_path, names)))
    call = route(parse_head(f"GET /webhdfs/v1/d?op={op} HTTP/1.1\r\nHost: h\r\n\r\n".encode()))
    response = operations.list_status(call) if op == "LISTSTATUS" else operations.list_batch(call)
    answer = json.loads(response.body if response.pieces is None else b"".join(response.pieces))
    listing = (
        answer["FileStatuses"]
        if op == "LISTSTATUS"
        else (answer["DirectoryListing"]["partialListing"]["FileStatuses"])
    )
    assert [row["pathSuffix"] for row in listing["FileStatus"]] == [
        name for name in names if name.startswith("file")
    ]
