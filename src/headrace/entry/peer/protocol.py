"""Serve one peer connection, from its hello to its end, as a generator (see `channel.py`)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError, NotAllowedError, ProtocolError
from headrace.entry.peer.channel import REQUEST_BYTES_MAX, Channel, PeerGoneError, Result, Steps
from headrace.entry.peer.service import WORK_LIMIT_S, LoopBridge
from headrace.entry.peer.transfer import Transfer
from headrace.identity.mutual import PeerIdentity
from headrace.identity.names import StrangerError
from headrace.wire.message import Message
from headrace.wire.messages import Done
from headrace.wire.peer_frame import common_protocol, failure_of
from headrace.wire.peer_messages import (
    FILES_MAX,
    WRITER_IS_SENDER,
    Fetch,
    InvalidateListing,
    ListingRequest,
    Names,
    OfferHandover,
    OriginChanged,
    PeerHello,
    PeerRequest,
    PeerWelcome,
    PendingNamesRequest,
    Ping,
    QueryFailover,
    ReplicaRequest,
    ReportCorruption,
    TryPolicy,
)

HELLO_BYTES_MAX = 4 << 10
"""The peer has not authenticated yet."""


class PeerProtocol:
    """Answers the requests of one peer connection. me: returns this node's identity, called for each answer.
    protocols: the oldest and newest that this node speaks. on_refused: called with the reason why a hello was
    refused and the id that the peer claimed."""

    def __init__(
        self,
        channel: Channel,
        bridge: LoopBridge,
        *,
        me: Callable[[], PeerWelcome],
        cluster: str,
        protocols: tuple[int, int],
        on_refused: Callable[[str, str], None],
    ) -> None:
        self._channel = channel
        self._bridge = bridge
        self._me = me
        self._cluster = cluster
        self._protocols = protocols
        self._protocol = 0
        self._peer = ""
        self._on_refused = on_refused

    @property
    def is_greeted(self) -> bool:
        """Return whether the peer's hello was accepted."""
        return self._protocol > 0

    def run(self) -> Steps[None]:
        """Serve requests until the connection ends with PeerGoneError, OSError or ProtocolError. Raise StrangerError
        when the peer is not who it claims to be; the peer learns only that it was refused."""
        try:
            yield from self._run()
        except StrangerError:
            self._put(failure_of(NotAllowedError("this connection", why="refused")))
            yield from self._channel.flush()
            raise

    def _run(self) -> Steps[None]:
        member = yield from self._channel.handshake()
        hello = yield from self._channel.receive(bytes_max=HELLO_BYTES_MAX, ahead=False)
        self._identify(member, hello)
        yield from self._answer(self._hello, hello)
        while self._protocol:
            request = yield from self._channel.receive(bytes_max=REQUEST_BYTES_MAX)
            if member is not None and member.expired:
                raise PeerGoneError("its certificate has expired")
            if isinstance(request, WRITER_IS_SENDER) and request.writer != self._peer:
                raise StrangerError(f"node {self._peer} sent a request in the name of node {request.writer}")
            yield from self._answer(self._serve, request)

    def _identify(self, member: PeerIdentity | None, hello: PeerRequest) -> None:
        """Record the peer's identity, for the whole connection."""
        if not isinstance(hello, PeerHello):
            return
        if member is not None and hello.node != member.identity.name:
            raise StrangerError(f"its certificate names {member.identity}, its hello node {hello.node}")
        self._peer = hello.node

    def _answer(self, answer: Callable[[PeerRequest], Steps[None]], request: PeerRequest) -> Steps[None]:
        try:
            yield from answer(request)
        except HeadraceError as error:
            if not self.is_greeted:
                self._on_refused(str(error), request.node if isinstance(request, PeerHello) else "")
            self._channel.put(failure_of(error))
        yield from self._channel.flush()

    def _hello(self, request: PeerRequest) -> Steps[None]:
        if not isinstance(request, PeerHello):
            raise ProtocolError("the peer sent a request before its hello")
        if request.cluster != self._cluster:
            raise ProtocolError(
                f"the peer belongs to cluster {request.cluster!r}", why="this node belongs to another cluster"
            )
        self._protocol = common_protocol(request.protocols, ours=self._protocols)
        self._put(self._welcome())
        return
        yield

    def _serve(self, request: PeerRequest) -> Steps[None]:
        service = self._bridge.service
        if isinstance(request, Fetch):
            if not 0 < len(request.files) <= FILES_MAX:
                raise ProtocolError(
                    f"{len(request.files)} files in one request", why=f"1 to {FILES_MAX} are allowed"
                )
            yield from Transfer(self._channel, self._bridge, request, peer=self._peer).run()
        elif isinstance(request, ListingRequest):
            yield from self._list(request)
        elif isinstance(request, InvalidateListing | OriginChanged):
            yield from self._call(service.invalidate_listing(request), "invalidating a listing for a peer")
            self._put(Done())
        elif isinstance(request, OfferHandover):
            self._put(
                (yield from self._call(service.take_over(request, peer=self._peer), "taking files over"))
            )
        elif isinstance(request, ReportCorruption):
            yield from self._call(service.check_corruption(request), "checking a file for a peer")
            self._put(Done())
        elif isinstance(request, ReplicaRequest):
            yield from self._call(service.replicate(request), "storing replicas")
            self._put(Done())
        elif isinstance(request, QueryFailover):
            self._put((yield from self._call(service.report_failover(request), "reporting a failover")))
        elif isinstance(request, PendingNamesRequest):
            self._put(
                (yield from self._call(service.pending_names(request), "answering about pending names"))
            )
        elif isinstance(request, TryPolicy):
            self._put((yield from self._call(service.try_policy(request), "trying a policy")))
        elif isinstance(request, Ping):
            self._put(self._welcome())
        else:
            raise ProtocolError("the peer sent a second hello")

    def _list(self, request: ListingRequest) -> Steps[None]:
        """Send names page by page. The loop builds one page at a time, and does other work in between."""
        pages = yield from self._call(self._bridge.service.names(request), "listing for a peer")
        is_last = False
        while not is_last:
            page = yield from self._call(_next_of(pages), "listing for a peer")
            is_last = page.last
            self._put(page)
            yield from self._channel.flush()

    def _call(self, work: Coroutine[Any, Any, Result], task: str) -> Steps[Result]:
        answer = self._bridge.call(work, task, WORK_LIMIT_S)
        yield answer
        if answer.cancelled():
            raise PeerGoneError("the peer disconnected")
        return answer.result()

    def _welcome(self) -> PeerWelcome:
        return msgspec.structs.replace(self._me(), protocol=self._protocol)

    def _put(self, message: Message) -> None:
        self._channel.put(message)


async def _next_of(pages: Iterator[Names]) -> Names:
    return next(pages)
