"""Bytes and names between two nodes over real sockets."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    HeadraceError,
    NotOwnerError,
    OriginDeniedError,
    PeerError,
    ProtocolError,
    VersionChangedError,
)
from headrace.base.model import ObjectMetadata
from headrace.base.promotion import Promotion
from headrace.entry.peer.server import PeerServer, avoid_bbr
from headrace.peer.client import PeerClient
from headrace.testing.waiting import until
from headrace.wire.peer_messages import (
    PEER_PROTOCOL,
    InvalidateListing,
    ListShared,
    Names,
    OriginChanged,
    PeerWelcome,
)

from .peer_desk import (
    CLUSTER,
    MIB,
    FileDesk,
    nothing_leaks,
    page_of,
    serving,
    soon,
)

pytestmark = pytest.mark.timeout(60)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def loop_factory() -> Iterator[LoopFactory]:
    """On uvloop, as the node; afterwards nothing is left."""
    with nothing_leaks():
        yield uvloop.new_event_loop


@pytest.mark.parametrize("size_bytes", [1, 4095, MIB, MIB + 1, 9 * MIB + 17])
async def test_a_cached_file(tmp_path: Path, size_bytes: int) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", size_bytes)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        assert await pair.fetch(wanted, cached_only=True) == pair.desk.body(wanted)
        assert await pair.fetch_small(wanted) == pair.desk.body(wanted)


async def test_what_is_known_of_a_file_comes_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        metadata = ObjectMetadata({"a": "b"}, {"Content-Type": "text/x"}, None)
        files = [pair.desk.add(f"f{number}", MIB + 1) for number in range(2)]
        for extras, wanted in zip((None, metadata), files, strict=True):
            pair.desk.files[wanted.path].extras = extras
            arrived = await pair.peers.fetch(pair.node, wanted, cached_only=False, epoch=1, deadline=soon())
            assert (arrived.body, arrived.extras) == (pair.desk.body(wanted), extras)
        small = [pair.peers.fetch_small(pair.node, file, epoch=1, deadline=soon()) for file in files]
        assert [answer.extras for answer in await asyncio.gather(*small)] == [None, metadata]


async def test_ranges_of_a_file_that_begin_and_end_anywhere(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        whole = pair.desk.add("f", 5 * MIB + 1234)
        chance = random.Random(3)
        for _ in range(40):
            start = chance.randrange(whole.size_bytes - 1)
            end = chance.randrange(start + 1, whole.size_bytes + 1)
            part = msgspec.structs.replace(whole, start=start, end=end)
            assert await pair.fetch(part) == pair.desk.body(part)


async def test_a_file_that_is_being_filled_streams_as_it_lands(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 20 * MIB, landed=False)
        file = pair.desk.files[wanted.path]
        file.land(0, 1, 2)
        fetching = asyncio.ensure_future(pair.fetch(wanted))
        await until(lambda: file.waits == 1)
        file.land(*range(3, 19))
        await until(lambda: file.waits == 2)  # of the last block: the others are on their way
        assert not fetching.done()
        file.land(19)
        assert await fetching == pair.desk.body(wanted)


async def test_many_files_come_in_the_order_in_which_they_are_ready(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", 110_000 + n, landed=n % 2 == 0) for n in range(40)]
        tasks = [asyncio.ensure_future(pair.fetch_small(file)) for file in files]
        for task, file in list(zip(tasks, files, strict=True))[::2]:
            assert await task == pair.desk.body(file)
        late = list(zip(tasks, files, strict=True))[1::2]
        assert not any(task.done() for task, _ in late)
        for task, file in reversed(late):
            pair.desk.files[file.path].land(0)
            assert await task == pair.desk.body(file)


@pytest.mark.parametrize("is_small", [True, False])
async def test_a_background_request_is_sent_again_when_a_reader_waits(
    tmp_path: Path, *, is_small: bool
) -> None:
    async with serving(tmp_path) as pair:
        fetch: Any = pair.peers.fetch_small if is_small else partial(pair.peers.fetch, cached_only=False)
        wanted, promotion = pair.desk.add("f", 110_000, landed=False), Promotion()
        fetching = asyncio.ensure_future(
            fetch(pair.node, wanted, epoch=1, deadline=soon(), promotion=promotion)
        )
        file = pair.desk.files[wanted.path]
        await until(lambda: file.waits == 1)
        assert pair.desk.are_background == [True]
        promotion.promote()
        await until(lambda: file.waits == 2 and file.cancelled == 1)
        assert pair.desk.are_background == [True, False]
        file.land(0)
        assert (await fetching).body == pair.desk.body(wanted)
        again = await fetch(pair.node, wanted, epoch=1, deadline=soon(), promotion=promotion)
        assert again.body == pair.desk.body(wanted)
        assert pair.desk.are_background == [True, False, False]


async def test_the_time_of_background_requests_does_not_make_a_peer_seem_slow(tmp_path: Path) -> None:
    """It waits for the peer's other reads."""
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 110_000)
        for promotion in (Promotion(), None):
            arrived = await pair.peers.fetch(
                pair.node, wanted, cached_only=False, epoch=1, deadline=soon(), promotion=promotion
            )
            assert arrived.body == pair.desk.body(wanted)
        (times,) = pair.peers.table.latencies._samples.values()
        assert len(times) == 1


async def test_ten_thousand_small_files_go_in_batches(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", 1 + n * 37 % 30_000) for n in range(500)]
        order = random.Random(1).choices(files, k=10_000)
        limit = asyncio.Semaphore(512)

        async def one(number: int) -> None:
            async with limit:
                assert await pair.fetch_small(order[number]) == pair.desk.body(order[number])

        await asyncio.gather(*map(one, range(len(order))))
        assert sum(pair.desk.requests) == len(order)
        assert len(pair.desk.requests) < len(order) / 10
        assert max(pair.desk.requests) <= 256


async def test_eight_nodes_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", 3 * MIB + n) for n in range(6)]
        nodes = [PeerClient(f"n{n}", CLUSTER) for n in range(8)]

        async def read(peers: PeerClient) -> None:
            for file in files * 2:
                arrived = await peers.fetch(pair.node, file, cached_only=False, epoch=1, deadline=soon())
                assert arrived.body == pair.desk.body(file)

        await asyncio.gather(*map(read, nodes))
        for peers in nodes:
            peers.close()
        assert len(pair.desk.threads) == 1  # the loop's, and no other


async def test_a_file_evicted_under_its_reader_is_read_to_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 18 * MIB, landed=False)
        file = pair.desk.files[wanted.path]
        file.land(*range(17))
        fetching = asyncio.ensure_future(pair.fetch(wanted))
        await until(lambda: file.waits == 1)
        os.unlink(tmp_path / "f")
        file.land(17)
        assert await fetching == pair.desk.body(wanted)


@pytest.mark.parametrize(
    "error", [VersionChangedError("s3://b/k"), OriginDeniedError("s3://b/k", why="403", hint="keys")]
)
async def test_what_the_owner_meets_comes_out_as_it_was(tmp_path: Path, error: HeadraceError) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 3 * MIB, landed=False)
        good = pair.desk.add("g", 1000)
        file = pair.desk.files[wanted.path]
        file.land(0)
        fetching = asyncio.ensure_future(pair.fetch(wanted))
        small = asyncio.ensure_future(pair.fetch_small(wanted))
        await until(lambda: file.waits == 2)
        file.fail(error)
        for task in (fetching, small):
            with pytest.raises(type(error)) as raised:
                await task
            assert str(raised.value) == str(error)
        file.failure_of_open = error
        with pytest.raises(type(error)):
            await pair.fetch(wanted)
        assert await pair.fetch(good) == pair.desk.body(good)
        assert pair.peers.usable(pair.node)
        with pytest.raises(NotOwnerError):
            await pair.fetch(msgspec.structs.replace(good, path=b"/data/nothing"))


async def test_listings_lookups_and_the_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        peers, node, desk = pair.peers, pair.node, pair.desk
        desk.pages = [page_of(5000, n * 5000, last=n == 3) for n in range(4)]
        pages = [page async for page in peers.list(node, b"/data", epoch=1, deadline=soon())]
        assert pages == desk.pages
        row = desk.pages[2].rows[7]
        answer = await peers.lookup(node, b"/data", row.name, epoch=1, deadline=soon())
        assert answer.rows == [row]
        gone = await peers.lookup(node, b"/data", b"none", epoch=1, deadline=soon())
        assert gone.rows == []
        await peers.invalidate_listing(node, b"/data", relist=True, below=True, deadline=soon())
        await peers.report_origin_changes(node, OriginChanged([b"/data", b"/d"]), soon())
        await peers.report_origin_changes(node, OriginChanged([b"/data/x"], names=True), soon())
        assert desk.forgotten == [
            InvalidateListing(b"/data", relist=True, below=True),
            OriginChanged([b"/data", b"/d"]),
            OriginChanged([b"/data/x"], names=True),
        ]
        here = desk.add("f", 10)
        away = msgspec.structs.replace(here, path=b"/away")
        assert await peers.offer_handover(node, [away, here, away], epoch=1, deadline=soon()) == [0, 2]
        welcome = await peers.ping_any(node.address, soon())
        assert (welcome.node, welcome.instance, welcome.epoch) == ("b", "run1", 7)


async def test_the_loop_does_other_work_between_two_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages of a directory were built in one turn: of a million names in ten seconds."""
    async with serving(tmp_path) as pair:
        loop, turns = asyncio.get_running_loop(), [0]

        async def names(request: ListShared) -> Iterator[Names]:
            return pages()

        def pages() -> Iterator[Names]:
            for number in range(4):
                before = turns[0]
                loop.call_soon(lambda: turns.__setitem__(0, turns[0] + 1))
                yield page_of(5000, number * 5000, last=number == 3)
                assert asyncio.get_running_loop() is loop
                assert turns[0] > before

        monkeypatch.setattr(pair.desk, "names", names)
        listing = pair.peers.list(pair.node, b"/data", epoch=1, deadline=soon())
        assert sum([len(page.rows) async for page in listing]) == 20_000


async def test_connections_are_kept_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 1000)
        for _ in range(20):
            assert await pair.fetch(wanted) == pair.desk.body(wanted)
        assert pair.server.connections() == 1
        port = int(pair.node.address.rpartition(":")[2])
        await asyncio.to_thread(pair.server.stop)
        again = PeerServer(
            lambda: PeerWelcome(0, "b", "run1", 7), CLUSTER, pair.desk, loop=asyncio.get_running_loop()
        )
        again.start("127.0.0.1", port)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        assert pair.peers.table.statistics()["b"]["errors"] == 0
        await asyncio.to_thread(again.stop)


@pytest.mark.expected_warnings("this node belongs to another cluster")
async def test_another_node_at_the_address_is_not_believed(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 1000)
        other = msgspec.structs.replace(pair.node, instance="run2")
        with pytest.raises(PeerError, match="another node answers"):
            await pair.peers.fetch(other, wanted, cached_only=False, epoch=1, deadline=soon())
        strangers = PeerClient("a", "another")
        with pytest.raises(ProtocolError, match="cluster"):
            await strangers.ping_any(pair.node.address, soon())
        strangers.close()


@pytest.mark.parametrize(
    ("server", "client", "spoken"),
    [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((2, 3), (1, 2), 2), ((1, 2), (2, 3), 2)],
)
async def test_protocols_that_differ_by_one(
    tmp_path: Path, server: tuple[int, int], client: tuple[int, int], spoken: int
) -> None:
    async with serving(tmp_path, server_protocols=server, client_protocols=client) as pair:
        wanted = pair.desk.add("f", 3 * MIB)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        assert (await pair.peers.ping(pair.node, soon())).protocol == spoken


@pytest.mark.expected_warnings("the peer speaks protocols")
async def test_protocols_with_nothing_in_common(tmp_path: Path) -> None:
    async with serving(tmp_path, server_protocols=(PEER_PROTOCOL + 1, PEER_PROTOCOL + 2)) as pair:
        with pytest.raises(ProtocolError, match="speaks protocols"):
            await pair.peers.ping(pair.node, soon())


async def test_a_thousand_idle_connections_cost_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        host, port = pair.node.address.split(":")
        idle = [await asyncio.to_thread(socket.create_connection, (host, int(port))) for _ in range(1000)]
        await until(lambda: pair.server.connections() == 1000)
        wanted = pair.desk.add("f", 3 * MIB)
        assert await pair.fetch(wanted) == pair.desk.body(wanted)
        assert len([t for t in threading.enumerate() if t.name.startswith("peer")]) < 20
        began_s, processor_s = time.monotonic(), time.process_time()
        await asyncio.to_thread(threading.Event().wait, 1.0)
        busy = (time.process_time() - processor_s) / (time.monotonic() - began_s)
        assert busy < 0.05
        for sock in idle:
            sock.close()
        await until(lambda: pair.server.connections() <= 1)


async def test_a_cancelled_call_ends_the_work_and_its_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", MIB, landed=False)
        file = pair.desk.files[wanted.path]
        for call in (pair.fetch, pair.fetch_small):
            file.waits = file.cancelled = 0
            fetching = asyncio.ensure_future(call(wanted))
            await until(lambda: file.waits == 1)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            await until(lambda: file.cancelled == 1 and pair.server.connections() == 0)


async def test_the_deadline_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", MIB, landed=False)
        fetch = functools.partial(pair.peers.fetch, cached_only=False)
        for call in (fetch, pair.peers.fetch_small):
            began_s = time.monotonic()
            with pytest.raises(PeerError, match="time allowed"):
                await call(pair.node, wanted, epoch=1, deadline=Deadline.after(0.3))
            assert 0.2 < time.monotonic() - began_s < 15
        assert pair.peers.usable(pair.node)


async def test_stop_while_transfers_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        files = [pair.desk.add(f"f{n}", 16 * MIB, landed=n % 2 == 0) for n in range(8)]
        begun = 0

        async def read(number: int) -> None:
            nonlocal begun
            while True:
                body = await pair.fetch(files[number])
                assert body == pair.desk.body(files[number])
                begun += 1

        tasks = [asyncio.ensure_future(read(n)) for n in range(8)]
        await until(lambda: begun > 4)
        began_s = time.monotonic()
        await asyncio.to_thread(pair.server.stop)
        assert time.monotonic() - began_s < 15  # and not STALL_S
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(failure) for failure in failures] == [PeerError] * 8


async def test_close_while_transfers_run(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        slow = [pair.desk.add(f"s{n}", MIB, landed=False) for n in range(8)]
        tasks = [asyncio.ensure_future(pair.fetch(file)) for file in slow]
        await until(lambda: len(pair.desk.requests) == 8)
        pair.peers.close()
        failures = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(failure) for failure in failures] == [PeerError] * 8
        with pytest.raises(PeerError, match="stops"):
            await pair.fetch(slow[0])


async def test_a_peer_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    from headrace.wire import peer_frame
    from headrace.wire.peer_messages import Fetch, PeerHello

    async with serving(tmp_path, stall_s=0.5) as pair:
        wanted = pair.desk.add("f", 64 * MIB)
        host, port = pair.node.address.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(peer_frame.encode(PeerHello((PEER_PROTOCOL, PEER_PROTOCOL), CLUSTER, "deaf")))
            sock.sendall(peer_frame.encode(Fetch([wanted], cached_only=False, epoch=1)))
            await until(lambda: pair.server.connections() == 1 and pair.desk.requests == [1])
            await until(lambda: pair.server.connections() == 0)


async def test_statistics_say_what_was_moved(tmp_path: Path) -> None:
    async with serving(tmp_path) as pair:
        wanted = pair.desk.add("f", 2 * MIB)
        await asyncio.gather(*(pair.fetch(wanted) for _ in range(4)))
        row = pair.peers.table.statistics()["b"]
        assert (row["requests"], row["bytes"], row["files"]) == (4, 8 * MIB, 4)
        assert (row["errors"], row["breaker"]) == (0, "closed")
        assert 0 < row["latency_s_p50"] <= row["latency_s_p99"] < 10


async def test_a_listening_port_that_is_taken(tmp_path: Path) -> None:
    desk = FileDesk(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = PeerServer(
            lambda: PeerWelcome(0, "b", "run1", 7), CLUSTER, desk, loop=asyncio.get_running_loop()
        )
        with pytest.raises(HeadraceError, match="peers at"):
            server.start("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(("given", "wanted"), [("bbr", "cubic"), ("reno", "reno"), ("cubic", "cubic")])
def test_what_is_sent_is_sent_fairly(given: str, wanted: str) -> None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if not {given, wanted} <= set(available):
        pytest.skip(f"the kernel has not both of {given} and {wanted}")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, given.encode())
        avoid_bbr(listening)
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            name = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert name.rstrip(b"\0").decode() == wanted
