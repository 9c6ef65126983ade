"""A page of a listing that arrives after its deadline: the client of that store works on."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from tests.conformance.origin.origin_suite import listing_of, opened
from tests.unit.origin.stand_in_store import StandInHandler, StandInStore, attach_s3, serving

pytestmark = pytest.mark.real_time  # obstore waits for the server in threads of its own

LISTING = b"""<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>
<Contents><Key>f</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>"0"</ETag><Size>5</Size></Contents>
</ListBucketResult>"""


class _Server(StandInStore):
    def __init__(self, handler: type[StandInHandler]) -> None:
        super().__init__(handler)
        self.may_answer, self.answered = threading.Event(), threading.Event()


class _Handler(StandInHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.may_answer.wait(60)
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(LISTING)))
        self.end_headers()
        self.wfile.write(LISTING)
        self.server.answered.set()


@pytest.fixture
def server() -> Iterator[_Server]:
    with serving(_Server(_Handler)) as listening:
        yield listening


async def test_listings_work_after_a_page_came_too_late(server: _Server) -> None:
    """obstore's pool of connections broke when Python freed the late listing, and each later call failed."""
    async with opened(attach_s3(server)) as origin:
        with pytest.raises(DeadlineExceededError) as raised:  # its traceback holds the frames of the listing
            async for _ in origin.list_directory("", deadline=Deadline.after(0.2)):
                pass
        server.may_answer.set()
        assert server.answered.wait(60)
        await asyncio.sleep(0.2)  # obstore receives the response, which nobody awaits
        del raised
        gc.collect()
        for _ in range(3):
            assert list((await listing_of(origin, "")).objects) == ["f"]
