"""One request to one peer, from connection to answer: what runs on the loop. Threads only move bytes (`talks.py`).

A connection belongs to one request at a time; one whose request was cancelled or went wrong is closed. While a peer
says nothing, no thread waits for it, and soon it is asked on another connection whether it lives: a node that hangs,
or is cut off, is found out in SILENCE_S + PING_S, one that waits for a slow origin is waited for (decision 0037).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.base.breaker import Breaker, BreakerLimits
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.identity.mutual import MutualTls
from headrace.peer.calls import Call, UnaryCall
from headrace.peer.connection import SILENCE_S, PeerConnection
from headrace.wire.peer_messages import PeerHello, PeerWelcome, Ping

IDLE_LINKS_MAX = 32
IDLE_S_MAX = 60.0
"""The other side waits longer (entry/peer/server.py), so that it is mostly this one that closes."""
CONNECTING_MAX = 4
"""At once to one peer: one that accepts and says nothing can't take all threads."""
PING_S = 0.8
SILENCE_S_MIN = 0.05
"""Where it was heard of elsewhere meanwhile."""
PINGS_MAX = 3
LATE_S = 0.3
"""A limit that is met so much later than it was set for says that this node stood still, and nothing of the peer."""
PING_THREADS = 16
"""Apart from the others, so that it is not for want of a thread that a peer seems to be dead."""
CHECK_LIMIT_S = 10.0
"""Of what ends by itself sooner, unless the loop stands still."""
BREAKER = BreakerLimits(failures_max=3, pause_s=0.5, pause_s_max=15.0, probe_limit_s=30.0)
"""One failure may be a connection that died with a restart."""
GRACE_S = 0.1
"""Threads keep the deadline themselves; what they miss is ended so much later."""

Result = TypeVar("Result")


class Peer:
    """What is known of one node. instance: None: whoever answers at the address."""

    def __init__(self, id: str, address: str, instance: str | None) -> None:
        self.id = id
        self.address = address
        self.instance = instance
        self.who = f"{id} at {address}" if id else f"at {address}"
        self.breaker = Breaker(BREAKER)
        self.idle: list[PeerConnection] = []
        self.connecting = asyncio.Semaphore(CONNECTING_MAX)
        self.trouble = ""  # why the last request failed; nothing when it did not
        self.heard_s = float("-inf")
        self.unreached_s = float("-inf")
        self.unreached: HeadraceError | None = None
        self.checking: asyncio.Task[None] | None = None
        self.requests = self.errors = self.bytes_received = self.files_received = 0

    def close_idle(self, before_s: float = float("inf")) -> None:
        for link in self.idle:
            if link.idle_since_s < before_s:
                link.close()
        self.idle = [link for link in self.idle if link.idle_since_s >= before_s]


class ConnectionPool:
    def __init__(self, hello: PeerHello, *, tls: MutualTls | None, threads: int) -> None:
        self._hello = hello
        self._tls = tls
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="peer")
        self._ping_threads = ThreadPoolExecutor(PING_THREADS, thread_name_prefix="peer-ping")
        self._busy: set[PeerConnection] = set()
        self._closed = False

    async def converse(self, peer: Peer, talk: Call, deadline: Deadline, *, watch: bool = True) -> None:
        """The talk is over on return. PeerError when the peer or the network failed it; of the peer's own errors the
        talk knows. watch: ask whether the peer lives while it is silent."""
        peer.requests += 1
        limit = asyncio.timeout(None if deadline.at_s == float("inf") else deadline.left_s() + GRACE_S)
        try:
            async with limit:
                await self._converse(peer, talk, deadline, watch=watch)
        except (HeadraceError, TimeoutError) as error:
            peer.errors += 1
            now = time.monotonic()
            quiet = now - peer.heard_s > SILENCE_S + PING_S and not _late(limit)
            if not limit.expired() or quiet:
                silent = limit.expired() or (isinstance(error, PeerError) and error.silent)
                peer.breaker.failed(now, chance=random.random(), silent=quiet and silent)
            if not limit.expired():
                peer.trouble = str(error)
                raise
            late = PeerError(f"node {peer.who}", why="no answer within the time allowed", silent=True)
            peer.trouble = str(late)
            raise late from None
        peer.breaker.succeeded()
        peer.trouble = ""

    async def ping(self, peer: Peer, deadline: Deadline) -> PeerWelcome:
        talk = UnaryCall(Ping(), PeerWelcome)
        await self.converse(peer, talk, deadline, watch=False)
        return talk.result()

    def close(self) -> None:
        """What is under way ends with PeerError. Waits for nothing."""
        self._closed = True
        for link in self._busy:
            link.abort()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._ping_threads.shutdown(wait=False, cancel_futures=True)

    async def _converse(self, peer: Peer, talk: Call, deadline: Deadline, *, watch: bool) -> None:
        threads = self._threads if watch else self._ping_threads
        while True:
            link = _take_idle(peer)
            fresh = link is None
            if link is None:
                link = await self._connect(peer, deadline, threads)
            if watch:
                link.lend(deadline, self._checks(peer))
            else:
                link.lend(deadline)
            self._busy.add(link)
            try:
                await self._drive(peer, link, talk, threads, watch=watch)
                break
            except HeadraceError as error:
                link.close()
                if fresh or link.answered or (isinstance(error, PeerError) and error.silent):
                    raise
                peer.close_idle()  # it died while it was idle; so did the others, most likely
                talk.restart()
            finally:
                self._busy.discard(link)
        self._give_back(peer, link)

    async def _drive(
        self, peer: Peer, link: PeerConnection, talk: Call, threads: ThreadPoolExecutor, *, watch: bool
    ) -> None:
        while not await self._in_thread(lambda: talk.run(link), link, threads):
            if link.answered:
                peer.heard_s = time.monotonic()
            await self._readable(peer, link, watch=watch)
        peer.heard_s = time.monotonic()

    async def _in_thread(
        self, call: Callable[[], Result], link: PeerConnection, threads: ThreadPoolExecutor
    ) -> Result:
        work = _submit(threads, call, link.who)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            link.abort()
            work.cancel()
            work.add_done_callback(lambda _: link.close())  # not under the thread's hands
            if self._closed and not _being_cancelled():
                raise PeerError(f"node {link.who}", why="this node stops") from None
            raise

    async def _readable(self, peer: Peer, link: PeerConnection, *, watch: bool) -> None:
        """Until something came from the peer."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        number = link.fileno()
        limit_s = SILENCE_S if watch else None
        loop.add_reader(number, came.set)
        try:
            while not came.is_set():
                try:
                    async with asyncio.timeout(limit_s):
                        await came.wait()
                except TimeoutError:
                    await self._check(peer)
                    limit_s = max(SILENCE_S_MIN, peer.heard_s + SILENCE_S - time.monotonic())
        except BaseException:
            loop.remove_reader(number)
            link.close()
            raise
        loop.remove_reader(number)
        link.waited()

    async def _check(self, peer: Peer) -> None:
        """PeerError when it does not live. One asks for all who wait."""
        if time.monotonic() - peer.heard_s < SILENCE_S:
            return
        if peer.checking is None:
            peer.checking = asyncio.ensure_future(self._ping_only(peer))
            peer.checking.add_done_callback(lambda done: _checked(peer, done))
        await asyncio.shield(peer.checking)

    def _checks(self, peer: Peer) -> Callable[[], None]:
        """_check, for a thread that waits in the middle of an answer."""
        loop = asyncio.get_running_loop()

        def check() -> None:
            work = self._check(peer)
            try:
                checked = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:
                work.close()
                raise PeerError(f"node {peer.who}", why="this node stops") from None
            try:
                checked.result(CHECK_LIMIT_S)
            except (CancelledError, TimeoutError):
                raise PeerError(f"node {peer.who}", why="this node stops") from None

        return check

    async def _ping_only(self, peer: Peer) -> None:
        for left in reversed(range(PINGS_MAX)):
            late_s = time.monotonic() + PING_S + GRACE_S + LATE_S
            try:
                await self.ping(peer, Deadline.after(PING_S))
                return
            except PeerError as error:
                if not error.silent or not left or time.monotonic() < late_s:
                    raise

    async def _connect(self, peer: Peer, deadline: Deadline, threads: ThreadPoolExecutor) -> PeerConnection:
        began_s = time.monotonic()
        async with peer.connecting:
            if peer.unreached is not None and peer.unreached_s > began_s:
                raise peer.unreached.copied()  # others tried while this one waited for its turn
            work = _submit(
                threads,
                lambda: PeerConnection.connect(
                    peer.address,
                    self._hello,
                    node=peer.id,
                    who=peer.who,
                    tls=self._tls,
                    deadline=deadline,
                ),
                peer.who,
            )
            try:
                link = await asyncio.wrap_future(work)
            except asyncio.CancelledError:
                work.cancel()
                work.add_done_callback(_close_result)
                if self._closed and not _being_cancelled():
                    raise PeerError(f"node {peer.who}", why="this node stops") from None
                raise
            except HeadraceError as error:
                peer.unreached_s, peer.unreached = time.monotonic(), error.copied()
                raise
        welcome = link.welcome
        if peer.instance is not None and (welcome.node, welcome.instance) != (peer.id, peer.instance):
            link.close()
            raise PeerError(
                f"node {peer.who}", why=f"another one answers there: {welcome.node}, run {welcome.instance}"
            )
        peer.heard_s = time.monotonic()
        return link

    def _give_back(self, peer: Peer, link: PeerConnection) -> None:
        if self._closed or len(peer.idle) >= IDLE_LINKS_MAX:
            link.close()
            return
        link.idle_since_s = time.monotonic()
        peer.idle.append(link)


def _submit(threads: ThreadPoolExecutor, call: Callable[[], Result], who: str) -> Future[Result]:
    try:
        return threads.submit(call)
    except RuntimeError as error:
        raise PeerError(f"node {who}", why="this node stops") from error


def _take_idle(peer: Peer) -> PeerConnection | None:
    """The one used last; those that ended meanwhile are closed."""
    while peer.idle:
        link = peer.idle.pop()
        if not link.stale():
            link.answered = False
            return link
        link.close()
    return None


def _checked(peer: Peer, task: asyncio.Task[None]) -> None:
    peer.checking = None
    if not task.cancelled():
        task.exception()  # looked at: those who wait for it may have left


def _late(limit: asyncio.Timeout) -> bool:
    when = limit.when()
    return limit.expired() and when is not None and asyncio.get_running_loop().time() > when + LATE_S


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _close_result(work: Future[PeerConnection]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
