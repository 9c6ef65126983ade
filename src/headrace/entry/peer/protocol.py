"""What is said on one connection of a peer, from its hello to its end: a generator, see `channel.py`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from headrace.base.errors import HeadraceError, NotAllowedError, ProtocolError
from headrace.entry.peer.channel import REQUEST_BYTES_MAX, Channel, PeerGoneError, Result, Steps
from headrace.entry.peer.service import WORK_LIMIT_S, LoopBridge
from headrace.entry.peer.transfer import Transfer
from headrace.identity.mutual import PeerIdentity
from headrace.identity.names import StrangerError
from headrace.wire.messages import Done, Message
from headrace.wire.peer_frame import common_protocol, failure_of
from headrace.wire.peer_messages import (
    FILES_MAX,
    WRITER_IS_SENDER,
    DirtyNamesChanged,
    Fetch,
    InvalidateListing,
    ListPending,
    ListShared,
    LookupShared,
    OfferHandover,
    PeerHello,
    PeerRequest,
    PeerWelcome,
    Ping,
    QueryFailover,
    RecallLease,
    Replicate,
    ReplicateAhead,
    ReportCorruption,
    ResolveVersion,
)

HELLO_BYTES_MAX = 4 << 10
"""Nobody has said yet who he is."""


class PeerProtocol:
    """me: who this node is, asked anew each time. protocols: the oldest and the newest that are spoken. refused: told
    why a hello was refused, and by what id the peer called itself."""

    def __init__(
        self,
        channel: Channel,
        calls: LoopBridge,
        *,
        me: Callable[[], PeerWelcome],
        cluster: str,
        protocols: tuple[int, int],
        refused: Callable[[str, str], None],
    ) -> None:
        self._channel = channel
        self._calls = calls
        self._me = me
        self._cluster = cluster
        self._protocols = protocols
        self._protocol = 0
        self._asker = ""
        self._refused = refused

    @property
    def greeted(self) -> bool:
        """Whether the peer's hello was taken."""
        return self._protocol > 0

    def run(self) -> Steps[None]:
        """HungUpError, OSError, ProtocolError: the connection ended. StrangerError: the peer is not who it says, and
        was told no more than that."""
        try:
            yield from self._run()
        except StrangerError:
            self._put(failure_of(NotAllowedError("this connection", why="refused")))
            yield from self._channel.flush()
            raise

    def _run(self) -> Steps[None]:
        member = yield from self._channel.handshake()
        hello = yield from self._channel.receive(bytes_max=HELLO_BYTES_MAX, ahead=False)
        self._know(member, hello)
        yield from self._answer(self._hello, hello)
        while self._protocol:
            request = yield from self._channel.receive(bytes_max=REQUEST_BYTES_MAX)
            if member is not None and member.expired:
                raise PeerGoneError("its certificate has ended")
            if isinstance(request, WRITER_IS_SENDER) and request.writer != self._asker:
                raise StrangerError(f"node {self._asker} speaks for node {request.writer}")
            yield from self._answer(self._serve, request)

    def _know(self, member: PeerIdentity | None, hello: PeerRequest) -> None:
        """Who asks, from here to the end of the connection."""
        if not isinstance(hello, PeerHello):
            return
        if member is not None and hello.node != member.identity.name:
            raise StrangerError(
                f"its certificate is that of {member.identity}, and it says to be {hello.node}"
            )
        self._asker = hello.node

    def _answer(self, answer: Callable[[PeerRequest], Steps[None]], request: PeerRequest) -> Steps[None]:
        try:
            yield from answer(request)
        except HeadraceError as error:
            if not self.greeted:
                self._refused(str(error), request.node if isinstance(request, PeerHello) else "")
            self._channel.put(failure_of(error))
        yield from self._channel.flush()

    def _hello(self, request: PeerRequest) -> Steps[None]:
        if not isinstance(request, PeerHello):
            raise ProtocolError("a request before the hello")
        if request.cluster != self._cluster:
            raise ProtocolError(
                f"a node of cluster {request.cluster!r}", why="this node is of another cluster"
            )
        self._protocol = common_protocol(request.protocols, ours=self._protocols)
        self._put(self._welcome())
        return
        yield

    def _serve(self, request: PeerRequest) -> Steps[None]:
        if isinstance(request, Fetch):
            if not 0 < len(request.files) <= FILES_MAX:
                raise ProtocolError(f"{len(request.files)} files in one request", why=f"1 to {FILES_MAX}")
            yield from Transfer(self._channel, self._calls, request).run()
        elif isinstance(request, ListShared | LookupShared):
            pages = yield from self._ask(
                self._calls.call(self._calls.desk.names(request), "listing for a peer", WORK_LIMIT_S)
            )
            for page in pages:
                self._put(page)
                yield from self._channel.flush()
        elif isinstance(request, InvalidateListing):
            work = self._calls.desk.forget(request)
            yield from self._ask(self._calls.call(work, "forgetting for a peer", WORK_LIMIT_S))
            self._put(Done())
        elif isinstance(request, OfferHandover):
            taking = self._calls.desk.take(request)
            self._put((yield from self._ask(self._calls.call(taking, "taking files over", WORK_LIMIT_S))))
        elif isinstance(request, ReportCorruption):
            looking = self._calls.desk.doubt(request)
            yield from self._ask(self._calls.call(looking, "checking a file for a peer", WORK_LIMIT_S))
            self._put(Done())
        elif isinstance(request, Replicate | ReplicateAhead):
            keeping = self._calls.desk.keep(request)
            yield from self._ask(self._calls.call(keeping, "keeping copies", WORK_LIMIT_S))
            self._put(Done())
        elif isinstance(request, QueryFailover):
            giving = self._calls.desk.give_back(request)
            self._put((yield from self._ask(self._calls.call(giving, "giving copies back", WORK_LIMIT_S))))
        elif isinstance(request, ListPending | DirtyNamesChanged | ResolveVersion | RecallLease):
            telling = self._calls.desk.written(request)
            self._put(
                (yield from self._ask(self._calls.call(telling, "telling what was written", WORK_LIMIT_S)))
            )
        elif isinstance(request, Ping):
            self._put(self._welcome())
        else:
            raise ProtocolError("a second hello")

    def _ask(self, answer: Future[Result]) -> Steps[Result]:
        yield answer
        if answer.cancelled():
            raise PeerGoneError("the peer left")
        return answer.result()

    def _welcome(self) -> PeerWelcome:
        return msgspec.structs.replace(self._me(), protocol=self._protocol)

    def _put(self, message: Message) -> None:
        self._channel.put(message)
