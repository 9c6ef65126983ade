"""Send requests to a node of another user. A request is one packet; an answer is one packet with descriptors.
Blocking, safe after a fork.
"""

from __future__ import annotations

import array
import os
import socket
import threading
import time

from headrace.base.deadline import Deadline
from headrace.base.errors import NodeUnavailableError, NotAllowedError, ProtocolError
from headrace.base.passed_descriptors import received_descriptors
from headrace.base.peer_process import peer_of
from headrace.base.trusted_owner import chosen_by_root, is_trusted
from headrace.client.connection import connect_within
from headrace.wire.broker_messages import (
    ANSWER_BYTES_MAX,
    FILES_MAX,
    Answer,
    BrokerMessage,
    BrokerRefusal,
    decode_answer,
    encode,
    error_of,
)

RECONNECT_PAUSE_S = 0.05
CONNECT_LIMIT_S = 10.0
"""Seconds for which a new connection waits while the node accepts none."""
_FD_BYTES = array.array("i").itemsize
_RIGHTS_BYTES = socket.CMSG_SPACE(FILES_MAX * _FD_BYTES)


class BrokerConnection:
    """Send requests to a broker. Thread-safe: each thread has its own socket during a request.

    any_owner: trust the user that runs the node, because the caller named its socket. Otherwise trust root, this user,
    and the user that root chose.
    """

    def __init__(self, path: str, *, patience_s: float, any_owner: bool) -> None:
        self.path = path
        self._patience_s = patience_s
        self._any_owner = any_owner
        self._free: list[socket.socket] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self.closed = False
        self._release(self._connect())  # raises now where access is denied or no node is up

    def ask(self, request: BrokerMessage) -> tuple[Answer, list[int]]:
        """Return the node's answer, and descriptors that the caller closes. Retries while the node is down, up to the
        patience. Errors of the node. Raises NodeUnavailableError or ProtocolError."""
        deadline = Deadline.after(self._patience_s)
        packet = encode(request)
        while True:
            try:
                answer, fds = self._ask(packet)
                break
            except NodeUnavailableError:
                if deadline.left_s() <= RECONNECT_PAUSE_S:
                    raise
                time.sleep(RECONNECT_PAUSE_S)
        if isinstance(answer, BrokerRefusal):
            _close(fds)
            raise error_of(answer)
        return answer, fds

    def _ask(self, packet: bytes) -> tuple[Answer, list[int]]:
        connection = self._acquire()
        try:
            connection.sendall(packet)
            body, rights, flags, _ = connection.recvmsg(
                ANSWER_BYTES_MAX, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            connection.close()
            raise self._unavailable(error.strerror or str(error)) from error
        except BaseException:
            connection.close()  # its answer may still come
            raise
        fds = received_descriptors(rights)
        try:
            if not body:
                raise self._unavailable("it closed the connection")
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ProtocolError("the node's answer is too long")
            answer = decode_answer(body)
        except BaseException:
            _close(fds)
            connection.close()
            raise
        self._release(connection)
        return answer, fds

    def _acquire(self) -> socket.socket:
        if self._process != os.getpid():  # a forked child does not use its parent's sockets
            self._lock = threading.Lock()
            self._free, self._process = [], os.getpid()
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._connect()

    def _release(self, connection: socket.socket) -> None:
        with self._lock:
            self._free.append(connection)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connect_within(connection, self.path, Deadline.after(CONNECT_LIMIT_S))
            uid = peer_of(connection).uid
        except NodeUnavailableError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise self._unavailable(error.strerror or str(error)) from error
        if not self._any_owner and not is_trusted(uid) and chosen_by_root(os.path.dirname(self.path)) != uid:
            connection.close()
            raise NotAllowedError(
                f"node at {self.path}",
                why=f"user {uid} runs it, whom neither root nor this user chose",
                hint="give its socket, if you trust that user",
            )
        return connection

    def close(self) -> None:
        self.closed = True
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free = []

    def _unavailable(self, why: str) -> NodeUnavailableError:
        return NodeUnavailableError(
            f"no node answers at {self.path}", why=why, hint="start one with `headrace up --allow-other`"
        )


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
