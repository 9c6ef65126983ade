"""Commands read by path: a file that changes between two requests is resolved again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace.base.errors import IsADirectoryPathError, StaleIdError, VersionChangedError
from headrace.base.model import ROOT_ID
from headrace.client import path_reader
from headrace.client.node_client import CHANGED_ATTEMPTS, NodeClient
from headrace.client.path_reader import PathReader
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, Open, Opened, Resolve, Resolved
from tests.unit.client.conftest import Cached
from tests.unit.client.scripted_node import ScriptedNode

StartNode = Callable[..., ScriptedNode]


@pytest.fixture
def node(start_node: StartNode, cached: Cached) -> ScriptedNode:
    """A node that resolves the paths of its cache."""

    def answer(request: Message) -> list[Answer]:
        if isinstance(request, Resolve):
            if request.path in (b"/", b"/dir"):
                return [Resolved(cached.directories[request.path.rstrip(b"/")], 2, 0, 0, "")]
            return [Resolved(cached.ids[request.path], 1, len(cached.files[request.path]), 7, '"t"')]
        return [Opened(True, "")] if isinstance(request, Open) else [Done()]

    scripted = start_node(cached.welcome())
    scripted.answer = answer
    return scripted


@pytest.fixture
def reader(node: ScriptedNode) -> Iterator[PathReader]:
    opened = PathReader(NodeClient(node.path, role="cli"))
    yield opened
    opened.close()


@pytest.mark.parametrize("start, end", [(0, None), (0, 10), (4990, None), (4990, 9999), (5000, None), (9, 9)])
def test_pieces_are_the_bytes_of_the_range(
    reader: PathReader, cached: Cached, monkeypatch: pytest.MonkeyPatch, start: int, end: int | None
) -> None:
    monkeypatch.setattr(path_reader, "READ_STEP_BYTES", 7)
    pieces = [bytes(piece) for piece in reader.read(b"/whole", start, end)]
    assert b"".join(pieces) == cached.files[b"/whole"][start:end]
    assert all(len(piece) <= 7 for piece in pieces)


@pytest.mark.parametrize("error", [StaleIdError("a"), VersionChangedError("a")])
def test_a_file_that_changed_is_resolved_again(
    node: ScriptedNode, reader: PathReader, cached: Cached, error: StaleIdError | VersionChangedError
) -> None:
    usual, failures = node.answer, CHANGED_ATTEMPTS - 1

    def answer(request: Message) -> list[Answer]:
        nonlocal failures
        if isinstance(request, Open) and failures:
            failures -= 1
            return [frame.failure_of(error)]
        return usual(request)

    node.answer = answer
    assert b"".join(reader.read(b"/whole")) == cached.files[b"/whole"]
    assert len(node.asked(Resolve)) == CHANGED_ATTEMPTS
    failures = CHANGED_ATTEMPTS
    with pytest.raises(type(error)):
        list(reader.read(b"/whole"))


def test_a_directory_is_listed_and_not_read(reader: PathReader) -> None:
    with pytest.raises(IsADirectoryPathError):
        list(reader.read(b"/dir"))
    assert [entry.name for entry in reader.list_path(b"/dir")] == [b"inner"]
    assert [entry.parent for entry in reader.list_path(b"/")] == [ROOT_ID] * 6
    assert [entry.name for entry in reader.list_path(b"/whole")] == [b"whole"]
