"""An upload that is repeated because its answer was lost does not take its own file for another client's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.errors import PathExistsError
from headrace.http.messages import parse_head
from headrace.rest import uploads
from headrace.rest.files import FileOperations
from headrace.rest.uploads import CreatedFiles
from headrace.testing.waiting import wait_for
from headrace.vfs.streams import WriteStream
from headrace.wire.api import UPLOAD_HEADER, PutQuery

JOIN_S = 60.0
FIRST, SECOND = "1" * 32, "2" * 32
pytestmark = pytest.mark.timeout(300)


class Folder:
    """Creates files in a directory, each once. before_name: called before a file gets its name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.before_name: Callable[[], None] = lambda: None

    def create(self, path: bytes, *, replace: bool, **_: object) -> WriteStream:
        file = self._folder / os.fsdecode(path[1:])
        temporary = self._folder / f"new-{threading.get_ident()}"

        def finish(_: int) -> None:
            self.before_name()
            try:
                (os.rename if replace else os.link)(temporary, file)
            except FileExistsError:
                raise PathExistsError(os.fsdecode(path)) from None

        return WriteStream(
            os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC),
            os.fsdecode(path),
            finish=finish,
            abandon=lambda _: None,
        )


def put(
    files: FileOperations, data: bytes, *, upload: str = "", path: str = "/f", replace: bool = False
) -> None:
    header = f"{UPLOAD_HEADER}: {upload}\r\n" if upload else ""
    request = parse_head(f"PUT /v1/content HTTP/1.1\r\nHost: h\r\n{header}\r\n".encode())
    files.write(request, PutQuery(path=path, replace=replace), iter([data]))


def test_a_repeated_upload_succeeds_and_another_one_does_not(tmp_path: Path) -> None:
    files = FileOperations(cast(Any, Folder(tmp_path)))
    put(files, b"mine", upload=FIRST)
    put(files, b"mine", upload=FIRST)
    for upload in ("", SECOND, "odd", FIRST[1:]):
        with pytest.raises(PathExistsError):
            put(files, b"mine", upload=upload)
    put(files, b"mine", upload=FIRST, path="/g")
    assert ((tmp_path / "f").read_bytes(), (tmp_path / "g").read_bytes()) == (b"mine", b"mine")


def test_the_body_of_a_repeated_upload_is_received(tmp_path: Path) -> None:
    """The connection would be cut off within it, and the answer lost again."""
    files = FileOperations(cast(Any, Folder(tmp_path)))
    request = parse_head(f"PUT / HTTP/1.1\r\nHost: h\r\n{UPLOAD_HEADER}: {FIRST}\r\n\r\n".encode())
    for _ in range(2):
        pieces: Iterator[bytes] = iter([b"a", b"b"])
        files.write(request, PutQuery(path="/f", replace=False), pieces)
        assert next(pieces, None) is None


def test_an_upload_that_failed_is_run_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    files = FileOperations(cast(Any, folder))
    (tmp_path / "f").write_bytes(b"another")
    for _ in range(2):
        with pytest.raises(PathExistsError):
            put(files, b"mine", upload=FIRST)
    (tmp_path / "f").unlink()
    put(files, b"mine", upload=FIRST)
    assert (tmp_path / "f").read_bytes() == b"mine"


def test_a_repeated_upload_waits_for_the_one_that_runs(tmp_path: Path) -> None:
    """The client broke off, and its first request goes on."""
    folder = Folder(tmp_path)
    files = FileOperations(cast(Any, folder))
    at_name, may_name = threading.Event(), threading.Event()

    def before_name() -> None:
        at_name.set()
        may_name.wait(JOIN_S)

    folder.before_name = before_name
    first = threading.Thread(target=put, args=(files, b"mine"), kwargs={"upload": FIRST}, daemon=True)
    first.start()
    assert at_name.wait(JOIN_S)
    outcomes: list[str] = []

    def repeat() -> None:
        try:
            put(files, b"mine", upload=FIRST)
            outcomes.append("done")
        except PathExistsError:
            outcomes.append("exists")

    again = threading.Thread(target=repeat, daemon=True)
    again.start()
    may_name.set()
    for thread in (first, again):
        thread.join(JOIN_S)
    assert outcomes == ["done"]


def test_few_uploads_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "KEPT_MAX", 3)
    created = CreatedFiles()
    ids = [f"{number:032x}" for number in range(5)]
    for id in ids:
        with created.once(id, b"/f") as was_created:
            assert not was_created
    remembered = []
    for id in reversed(ids):
        with created.once(id, b"/f") as was_created:
            remembered.append(was_created)
    assert remembered == [True, True, True, False, False]
    wait_for(lambda: not created._running)
