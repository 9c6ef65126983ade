"""Reads of many files that nobody waits for any more end at once, also at an origin that hangs."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import CancelledByUserError, OriginError
from headrace.sdk.bulk_read import ReadResult
from headrace.sdk.local_bulk_read import LocalBulkReader
from headrace.testing.waiting import wait_for
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, FillRange, Open, OpenMany
from tests.unit.client.conftest import Cached
from tests.unit.client.scripted_node import ScriptedNode

LIMIT_S = 60.0
HANGING = ["/partial", "/uncached"]
"""A large file, whose blocks are requested one after the other, and a small one, which is requested in a group."""
OpenVfs = Callable[..., LocalVfs]
pytestmark = pytest.mark.timeout(300)


def hang(request: Message) -> list[Answer]:
    return [] if isinstance(request, FillRange | OpenMany) else [Done()]


def ended(call: Callable[[], object]) -> bool:
    """Return whether a call returns in time."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return not thread.is_alive()


def begun(vfs: LocalVfs, node: ScriptedNode, reader: LocalBulkReader) -> Iterator[ReadResult]:
    """Return results of which the first was yielded, while the node hangs with the others."""
    node.answer = hang
    results = reader.read([*HANGING, "/whole"], ordered=False, on_error="raise")
    assert next(results).path == "/whole"
    wait_for(lambda: node.asked(FillRange) and node.asked(OpenMany), limit_s=LIMIT_S)
    return results


def test_reads_that_nobody_waits_for_end(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    """The end of the program waits for its threads, as after Ctrl-C."""
    reader = LocalBulkReader(vfs)
    results = begun(vfs, nodes[0], reader)
    assert ended(getattr(results, "close"))  # noqa: B009 - a generator
    assert ended(reader.close)
    assert not nodes[0].asked(Open)[1:], "no file of the group is requested on its own then"


def test_an_error_that_is_raised_ends_the_others(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    reader = LocalBulkReader(vfs)

    def answer(request: Message) -> list[Answer]:
        if isinstance(request, FillRange):
            wait_for(lambda: nodes[0].asked(OpenMany), limit_s=LIMIT_S)
            return [frame.failure_of(OriginError("origin", why="it is broken"))]
        return [] if isinstance(request, OpenMany) else [Done()]

    nodes[0].answer = answer
    with pytest.raises(OriginError, match="broken"):
        list(reader.read(HANGING, ordered=True, on_error="raise"))
    assert ended(reader.close)


def test_complete_reads_leave_no_descriptor(vfs: LocalVfs, cached: Cached) -> None:
    reader = LocalBulkReader(vfs)
    wanted = ["/whole", "/dir/inner", "/empty", "/large"]

    def read_all() -> None:
        for result in reader.read(wanted, ordered=True, on_error="raise"):
            assert result.data == cached.files[os.fsencode(result.path)]

    read_all()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        read_all()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 5
    reader.close()


def test_a_cancel_ends_the_reads_of_a_content(vfs: LocalVfs, nodes: list[ScriptedNode]) -> None:
    nodes[0].answer = hang
    cancel = Cancel()
    content = vfs.content(b"/partial", cancel)
    errors: list[Exception] = []

    def read() -> None:
        try:
            content.read(0, content.size_bytes)
        except CancelledByUserError as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    wait_for(lambda: nodes[0].asked(FillRange), limit_s=LIMIT_S)
    cancel.set()
    thread.join(LIMIT_S)
    assert len(errors) == 1
    content.close()
    cancel.close()
