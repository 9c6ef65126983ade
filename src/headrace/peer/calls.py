"""What is said on a link for one request: the part that runs in a thread.

A talk sends its request and reads the answer as far as it comes without a pause; at a pause between two messages it
gives its thread back, and is called again when there is more. So a peer that fetches for us from a slow origin costs
no thread here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.base.errors import CorruptBlockError, HeadraceError
from headrace.base.model import Arrived
from headrace.peer.connection import PeerConnection
from headrace.peer.response import ChecksumMismatchError, FetchResponse, InvalidResponseError
from headrace.wire.messages import Done, Failure, Message
from headrace.wire.peer_frame import error_of
from headrace.wire.peer_messages import Block, Fetch, FileEnd, FileRange, Names, PeerAnswer

PAUSE_MS = 20
"""How long a thread waits for the next message: what is cached over there comes sooner."""
FLUSH_BYTES = 4 << 20
"""Files of a batch are handed on in groups of this size: each group wakes the loop once."""

Fetched = Arrived | HeadraceError
Kind = TypeVar("Kind", bound=Message)


class Call:
    """One request and its answers."""

    def __init__(self, request: Message) -> None:
        self._request = request
        self._sent = False

    def run(self, link: PeerConnection) -> bool:
        """True: the answer is whole, and the link free for the next request. False: there is a pause. PeerError: the
        link is of no more use. What the peer says itself (Failure) is kept by the talk."""
        if not self._sent:
            link.answered = False
            link.send(self._request)
            self._sent = True
        while not link.waits(PAUSE_MS):
            if self._take(link.receive(), link):
                return True
        return False

    def restart(self) -> None:
        """On another link."""
        self._sent = False

    def _take(self, answer: PeerAnswer, link: PeerConnection) -> bool:
        raise NotImplementedError


class FetchCall(Call):
    """deliver: called in the thread, with files as they are whole or failed, by their numbers. rotten: a file of which
    the peer has, it seems, a bad block."""

    def __init__(self, request: Fetch, deliver: Callable[[list[tuple[int, Fetched]]], None]) -> None:
        super().__init__(request)
        self._wanted: list[FileRange] = request.files
        self._deliver = deliver
        self._assembly = FetchResponse(self._wanted)
        self._ready: list[tuple[int, Fetched]] = []
        self._ready_bytes = 0
        self.bytes_received = 0
        self.files_received = 0
        self.rotten: FileRange | None = None

    def restart(self) -> None:
        super().restart()
        self._assembly = FetchResponse(self._wanted)
        self._ready.clear()

    def run(self, link: PeerConnection) -> bool:
        try:
            return super().run(link)
        except InvalidResponseError as error:
            if isinstance(error, ChecksumMismatchError):
                self.rotten = self._wanted[error.file]
            raise link.broken(str(error)) from error
        finally:
            self._hand_on()

    def _take(self, answer: PeerAnswer, link: PeerConnection) -> bool:
        if isinstance(answer, Block):
            view = self._assembly.expect(answer)
            link.receive_into(view)
            self._assembly.received(answer, view)
            self.bytes_received += answer.length
        elif isinstance(answer, FileEnd):
            found = self._assembly.ended(answer)
            self._ready.append((answer.file, found))
            if isinstance(found, Arrived):
                self.files_received += 1
                self._ready_bytes += len(found.body)
            elif isinstance(found, CorruptBlockError):
                self.rotten = self._wanted[answer.file]
            if self._ready_bytes >= FLUSH_BYTES:
                self._hand_on()
        elif isinstance(answer, Failure):
            self._ready += [(index, error_of(answer)) for index in self._assembly.left]
            return True
        elif isinstance(answer, Done):
            self._assembly.done()
            return True
        else:
            raise link.broken(f"it answers a fetch with {type(answer).__name__}")
        return False

    def _hand_on(self) -> None:
        if self._ready:
            self._deliver(self._ready)
            self._ready, self._ready_bytes = [], 0


class UnaryCall(Call, Generic[Kind]):
    """A request with one answer. answer: after the end; failure: what the peer said instead."""

    def __init__(self, request: Message, kind: type[Kind]) -> None:
        super().__init__(request)
        self._kind = kind
        self.answer: Kind | None = None
        self.failure: HeadraceError | None = None

    def _take(self, answer: PeerAnswer, link: PeerConnection) -> bool:
        if isinstance(answer, self._kind):
            self.answer = answer
        elif isinstance(answer, Failure):
            self.failure = error_of(answer)
        else:
            raise link.broken(f"it answers {type(self._request).__name__} with {type(answer).__name__}")
        return True

    def result(self) -> Kind:
        if self.failure is not None:
            raise self.failure
        assert self.answer is not None
        return self.answer


class StreamingCall(Call):
    """deliver: called in the thread, a page at a time, and with the failure or None at the end."""

    def __init__(self, request: Message, deliver: Callable[[Names | HeadraceError | None], None]) -> None:
        super().__init__(request)
        self._deliver = deliver

    def _take(self, answer: PeerAnswer, link: PeerConnection) -> bool:
        if isinstance(answer, Names):
            self._deliver(answer)
            if answer.last:
                self._deliver(None)
            return answer.last
        if isinstance(answer, Failure):
            self._deliver(error_of(answer))
            return True
        raise link.broken(f"it answers a listing with {type(answer).__name__}")
