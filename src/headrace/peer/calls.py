"""Run one call on a connection to a peer: the part that runs in a thread.

A call sends its request and reads the answer as long as messages come without a pause. At a pause between two
messages it gives its thread back; it is run again when more arrives. So a peer that fetches from a slow origin for
this node occupies no thread here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.base.errors import CorruptBlockError, HeadraceError
from headrace.base.model import Arrived
from headrace.peer.connection import PeerConnection
from headrace.peer.response import ChecksumMismatchError, FetchResponse, InvalidResponseError
from headrace.wire.message import Message
from headrace.wire.messages import Done, Failure
from headrace.wire.peer_frame import error_of
from headrace.wire.peer_messages import Block, Fetch, FileEnd, FileRange, Names, PeerAnswer

PAUSE_MS = 20
"""Milliseconds that a thread waits for the next message. A peer sends cached files sooner than this."""
FLUSH_BYTES = 4 << 20
"""Bytes of the files of a batch that are delivered as one group, because each delivery wakes the event loop once."""

Fetched = Arrived | HeadraceError
Kind = TypeVar("Kind", bound=Message)


class Call:
    """Represents one request and its answers."""

    def __init__(self, request: Message) -> None:
        self._request = request
        self._sent = False

    def run(self, connection: PeerConnection) -> bool:
        """Read answers until they pause; return True when the answer is complete and the connection is free for the
        next request. Return False at a pause. Raise PeerError when the connection can't be used any more. A failure
        that the peer reports (Failure) is not raised but kept by the call."""
        if not self._sent:
            connection.answered = False
            connection.send(self._request)
            self._sent = True
        while not connection.is_quiet(PAUSE_MS):
            if self._handle(connection.receive(), connection):
                return True
        return False

    def restart(self) -> None:
        """Prepare the call to run on another connection."""
        self._sent = False

    def _handle(self, answer: PeerAnswer, connection: PeerConnection) -> bool:
        raise NotImplementedError


class FetchCall(Call):
    """Fetches ranges of files. deliver: the thread calls it with files that are complete or have failed, by their
    numbers in the request. corrupt_file: a file of which the peer seems to have a corrupt block."""

    def __init__(self, request: Fetch, deliver: Callable[[list[tuple[int, Fetched]]], None]) -> None:
        super().__init__(request)
        self._files: list[FileRange] = request.files
        self.is_background = request.background
        self._deliver = deliver
        self._response = FetchResponse(self._files)
        self._ready: list[tuple[int, Fetched]] = []
        self._ready_bytes = 0
        self.bytes_received = 0
        self.files_received = 0
        self.corrupt_file: FileRange | None = None

    def restart(self) -> None:
        super().restart()
        self._response = FetchResponse(self._files)
        self._ready.clear()

    def run(self, connection: PeerConnection) -> bool:
        try:
            return super().run(connection)
        except InvalidResponseError as error:
            if isinstance(error, ChecksumMismatchError):
                self.corrupt_file = self._files[error.file]
            raise connection.broken(str(error)) from error
        finally:
            self._flush()

    def _handle(self, answer: PeerAnswer, connection: PeerConnection) -> bool:
        if isinstance(answer, Block):
            view = self._response.expect(answer)
            connection.receive_into(view)
            self._response.received(answer, view)
            self.bytes_received += answer.length
        elif isinstance(answer, FileEnd):
            outcome = self._response.ended(answer)
            self._ready.append((answer.file, outcome))
            if isinstance(outcome, Arrived):
                self.files_received += 1
                self._ready_bytes += len(outcome.body)
            elif isinstance(outcome, CorruptBlockError):
                self.corrupt_file = self._files[answer.file]
            if self._ready_bytes >= FLUSH_BYTES:
                self._flush()
        elif isinstance(answer, Failure):
            self._ready += [(index, error_of(answer)) for index in self._response.remaining]
            return True
        elif isinstance(answer, Done):
            self._response.done()
            return True
        else:
            raise connection.broken(f"it answers a fetch with {type(answer).__name__}")
        return False

    def _flush(self) -> None:
        if self._ready:
            self._deliver(self._ready)
            self._ready, self._ready_bytes = [], 0


class SingleFetchCall(FetchCall):
    """Fetches a range of one file."""

    def __init__(self, request: Fetch) -> None:
        self._outcomes: list[tuple[int, Fetched]] = []
        super().__init__(request, self._outcomes.extend)

    def result(self) -> Arrived:
        """Return the bytes, once the call has ended. Raise the error of the file."""
        arrived = self._outcomes[0][1]
        if isinstance(arrived, HeadraceError):
            raise arrived
        return arrived


class UnaryCall(Call, Generic[Kind]):
    """Send a request that has one answer. answer: set at the end. failure: the error that the peer reported instead of
    an answer."""

    def __init__(self, request: Message, kind: type[Kind]) -> None:
        super().__init__(request)
        self._kind = kind
        self.answer: Kind | None = None
        self.failure: HeadraceError | None = None

    def _handle(self, answer: PeerAnswer, connection: PeerConnection) -> bool:
        if isinstance(answer, self._kind):
            self.answer = answer
        elif isinstance(answer, Failure):
            self.failure = error_of(answer)
        else:
            raise connection.broken(f"it answers {type(self._request).__name__} with {type(answer).__name__}")
        return True

    def result(self) -> Kind:
        if self.failure is not None:
            raise self.failure
        assert self.answer is not None
        return self.answer


class StreamingCall(Call):
    """Receives a listing page by page. deliver: the thread calls it with each page, and at the end with the failure
    or None."""

    def __init__(self, request: Message, deliver: Callable[[Names | HeadraceError | None], None]) -> None:
        super().__init__(request)
        self._deliver = deliver

    def _handle(self, answer: PeerAnswer, connection: PeerConnection) -> bool:
        if isinstance(answer, Names):
            self._deliver(answer)
            if answer.last:
                self._deliver(None)
            return answer.last
        if isinstance(answer, Failure):
            self._deliver(error_of(answer))
            return True
        raise connection.broken(f"it answers a listing with {type(answer).__name__}")
