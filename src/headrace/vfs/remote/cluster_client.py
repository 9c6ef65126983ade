"""Track the nodes of a cluster for a host without a node: their addresses, their shares of the data, and which of them
answer.

Requests for names go to one node, the home, while it answers. Bytes come from the nodes that own them by the ring, from
many at a time. If one node can't serve a request, the next one gets it. A node's bytes are not trusted: they are
compared with the checksums that come with them. Thread-safe, and safe after a fork.
"""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import xxhash

from headrace.base.deadline import Deadline
from headrace.base.decoding import convert, decode_json
from headrace.base.errors import (
    CorruptBlockError,
    HeadraceError,
    NodeUnavailableError,
    ProtocolError,
    VersionChangedError,
    error_classes,
)
from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.model import block_pieces
from headrace.base.tokens import Tokens
from headrace.http.node_connection import Address, HttpConnection, HttpResponse, is_alive
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo, next_view
from headrace.vfs.remote.request_group import RequestGroup
from headrace.wire.api import SUMS_HEADER, SUMS_WORD, Cluster, NewJob, Problem, Value, operation

log = logging.getLogger(__name__)

STEP_BYTES = 4 << 20
"""Bytes of one request at most. A larger range takes several requests, at one time."""
THREADS = 16
IDLE_LINKS_MAX = 32
SIZE_BYTES_MAX = (1 << 63) - 1
"""Largest file of a file system, whose offsets are off_t. Its times are as many seconds at most."""
ANSWER_BYTES_MAX = 64 << 20
"""Most bytes of an answer in JSON. The longest are pages of a listing with long names."""
VIEW_S = 15.0
PROBE_S = 1.0
PAUSE_S = 0.1
OWN_CHANGES_S = 10.0
"""Seconds after a change in which reads go to the node that took it, because it knows the change first."""
ANOTHER_MAY_HAVE_IT = frozenset(
    {
        *("node.unavailable", "internal", "protocol", "deadline", "path.stale", "cancelled"),
        *("store.no_space", "store.failed", "store.busy", "store.corrupt_index", "store.corrupt_block"),
        *("store.evicted", "peer.failed", "peer.not_owner", "origin.version_changed"),
    }
)
"""Errors of one node after which a read tries the next node."""

Word = str | float | bytes
"""A parameter's value; bool and int, too."""
Query = Mapping[str, Word]
Reply = TypeVar("Reply", bound=Value)
Result = TypeVar("Result")


class ClusterNode:
    """Holds one address, and the state of its node."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle: list[HttpConnection] = []
        self.bad = False
        """It did not answer. It comes last until it answers a probe."""
        self.probe_at_s = 0.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """Holds fetched bytes. data: fewer bytes than requested where the file ends before. etag: of their version."""

    data: bytes | memoryview
    size_bytes: int
    etag: str


class ClusterClient:
    """Sends requests to the nodes of a cluster. addresses: of some nodes at least. The client learns the others from
    them, unless any address could get the token that way: over http with a token, all nodes have to be named. tokens:
    None where the nodes require none."""

    def __init__(self, addresses: Sequence[Address], tokens: Tokens | None, *, patience_s: float) -> None:
        self._known = {address.url: ClusterNode(address) for address in addresses}
        self._named = list(self._known.values())
        self._changed_at: list[ClusterNode] = []
        self._tls = next((address.tls for address in addresses if address.tls is not None), None)
        self._tokens = tokens
        self._patience_s = patience_s
        self._home = random.choice(list(self._known.values()))
        self._view: ClusterView | None = None
        self._replicas = 1
        self._viewed_s = float("-inf")
        self._changed_s = float("-inf")
        self.threads = ForkSafePool(THREADS, "headrace-remote")
        """Fetch parts of a file. None of them waits for another."""
        self._start()
        self._fetch_members()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        for node in self._known.values():
            node.idle = []

    def close(self) -> None:
        with self._lock:
            links = [link for node in self._known.values() for link in node.idle]
            for node in self._known.values():
                node.idle = []
        self.threads.close(wait=False)
        for link in links:
            link.close()

    @property
    def home(self) -> ClusterNode:
        """Return the node that gets requests for names, and changes, now."""
        return self._order()[0]

    @property
    def only(self) -> ClusterNode | None:
        """Return the node that was named; None where several were."""
        return self._named[0] if len(self._named) == 1 else None

    @property
    def changed_at(self) -> list[ClusterNode]:
        """Return the nodes that took changes from this client."""
        return list(self._changed_at)

    # ------------------------------------------------------------ operations of the table

    def ask(
        self,
        name: str,
        kind: type[Reply],
        *,
        body: Value | None = None,
        on: ClusterNode | None = None,
        **query: Word,
    ) -> Reply:
        """Run an operation that may be repeated, on whichever node answers. on: on this node only. Raises the errors
        of the answer."""

        def send(node: ClusterNode) -> Reply:
            answer, link = self._send(node, name, query, body)
            data = self._read_all(node, name, answer, link)
            try:
                return convert(json.loads(data), kind)
            except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors, too
                raise ProtocolError(f"answer of {node.address.url}", why=str(error)) from None

        return self._first(self._order() if on is None else [on], send, only=on is not None)

    def change(
        self,
        name: str,
        query: Query,
        *,
        body: Value | Callable[[], IO[bytes]] | None = None,
        headers: dict[str, str] | None = None,
        repeatable: Callable[[HeadraceError], bool] = lambda _: False,
        is_own: Callable[[HeadraceError], bool] = lambda _: False,
    ) -> None:
        """Run an operation that changes something and has no answer. A node that breaks off may have run it, so the
        next node gets the request again. After that, an error is ignored if it only reports that the operation was done
        before (`repeatable`). is_own: an error that also reports what another client did. It is ignored if a node that
        broke off answers the request again, which that node recognizes."""
        broken_off: list[ClusterNode] = []

        def send_once(node: ClusterNode) -> None:
            link = self._connect(node)  # an idle one may be dead, and then the effect is unknown
            data = body() if callable(body) else body
            try:
                self._read_all(node, name, *self._send(node, name, query, data, headers, link=link))
            except NodeUnavailableError:
                if node not in broken_off:
                    broken_off.append(node)
                raise
            finally:
                if data is not None and not isinstance(data, Value):
                    data.close()

        def was_done(node: ClusterNode) -> bool:
            try:
                send_once(node)
            except HeadraceError:
                return False
            return True

        def send(node: ClusterNode) -> None:
            if node not in self._changed_at:
                self._changed_at.append(node)
            try:
                send_once(node)
            except HeadraceError as error:
                if isinstance(error, NodeUnavailableError) or not broken_off:
                    raise
                others = [other for other in broken_off if other is not node]
                if not (repeatable(error) or (is_own(error) and any(map(was_done, others)))):
                    raise

        self._first(self._order(), send)
        self._changed_s = time.monotonic()

    # ------------------------------------------------------------ bytes

    def fetch(
        self,
        path: bytes,
        start: int,
        end: int,
        *,
        etag: str = "",
        into: memoryview | None = None,
        group: RequestGroup | None = None,
    ) -> Fetched:
        """Fetch bytes start..end, at most STEP_BYTES, from an owner if possible. etag: only of that version, whose size
        the caller knows: fewer bytes are an error. Raises VersionChangedError where no node has it. into: the target of
        the bytes, instead of a new buffer. group: raises CancelledByUserError after its end."""
        requests = group or RequestGroup()
        headers = {SUMS_HEADER: SUMS_WORD, "range": f"bytes={start}-{end - 1}"}
        if etag:
            headers["if-match"] = etag

        def receive(node: ClusterNode) -> Fetched:
            answer, link = self._send(node, "readContent", {"path": path}, None, headers, requests=requests)
            if answer.status != 206:
                requests.release()
                if answer.status != 416:
                    raise self._error(node, answer, link)
                self._read_body(node, answer, link)
                return Fetched(b"", _size_beyond(node.address.who, answer, start), etag)
            try:
                _check_version(node.address.who, answer, path, etag)
                fetched = _received(node.address.who, answer, start, end, into)
            except CorruptBlockError:
                link.close()
                self._start_fsck(node, path)
                raise
            except BaseException:
                link.close()
                raise
            finally:
                requests.release()
            self._release(node, link)
            return fetched

        def receive_all(node: ClusterNode) -> Fetched:
            fetched = receive(node)
            if etag and len(fetched.data) < end - start:
                raise ProtocolError(
                    node.address.who, why="it sends fewer bytes than the version of the file has"
                )
            return fetched

        order = self._order(path, start)
        return self._first(order, receive_all, missing_of_home=True, requests=requests)

    def _start_fsck(self, node: ClusterNode, path: bytes) -> None:
        """Make the node compare its copy with its checksums, and drop bad blocks. Does not wait."""
        log.warning("bytes do not match their checksum node=%s path=%s", node.address.url, os.fsdecode(path))

        def run() -> None:
            try:
                answer, link = self._send(node, "startJob", {}, NewJob("fsck", os.fsdecode(path)))
                self._read_all(node, "startJob", answer, link)
            except HeadraceError as error:
                log.info("a node could not check a bad block error=%s", error)

        threading.Thread(target=run, daemon=True, name="headrace-fsck").start()

    # ------------------------------------------------------------ which node

    def _order(self, path: bytes | None = None, start: int = 0) -> list[ClusterNode]:
        """Order the nodes for a request: the owners of the bytes, rotated by the part of the file; then home; then
        all others. Nodes that did not answer recently come last."""
        self._reset_after_fork()
        self._refresh()
        with self._lock:
            all_nodes, view, home = list(self._known.values()), self._view, self._home
            by_url = dict(self._known)
        for node in all_nodes:
            if node.bad and time.monotonic() >= node.probe_at_s:
                node.probe_at_s = float("inf")
                threading.Thread(target=_probe, args=(node,), daemon=True, name="headrace-probe").start()
        random.shuffle(all_nodes)
        first: list[ClusterNode] = []
        if path is not None and view is not None and time.monotonic() - self._changed_s > OWN_CHANGES_S:
            owners = view.owners(path, start // SEGMENT_BYTES, replicas=self._replicas)
            rotation = start // STEP_BYTES % max(1, len(owners))
            first = [
                by_url[node.api] for node in (*owners[rotation:], *owners[:rotation]) if node.api in by_url
            ]
        order = list(dict.fromkeys([*first, home, *all_nodes]))
        return [*(node for node in order if not node.bad), *(node for node in order if node.bad)]

    def _first(
        self,
        order: list[ClusterNode],
        call: Callable[[ClusterNode], Result],
        *,
        missing_of_home: bool = False,
        only: bool = False,
        requests: RequestGroup | None = None,
    ) -> Result:
        """Return the result of the first node that has one. While none answers, retry all for `patience_s`.
        missing_of_home: only home may report a missing path, because others may not know the path yet. only: try no
        node outside the order. requests: those that `call` makes."""
        deadline = Deadline.after(self._patience_s)
        while True:
            failed: HeadraceError | None = None
            for node in order:
                _check(requests)
                try:
                    result = call(node)
                except NodeUnavailableError as error:
                    _check(requests)  # a connection that was cut off says nothing about the node
                    node.bad, node.probe_at_s = True, time.monotonic() + PROBE_S
                    failed = failed or error
                except HeadraceError as error:
                    if not self._may_have(error, node, missing_of_home=missing_of_home):
                        raise
                    failed = error
                else:
                    node.bad = False
                    if self._home.bad and not only:
                        self._home = node
                    return result
            assert failed is not None
            if not isinstance(failed, NodeUnavailableError) or deadline.passed():
                raise failed
            time.sleep(PAUSE_S)
            order = order if only else self._order()

    def _may_have(self, error: HeadraceError, node: ClusterNode, *, missing_of_home: bool) -> bool:
        """Return whether another node may have the data for which this one reported an error."""
        missing = error.code == "path.not_found" and missing_of_home and node is not self._home
        return missing or error.code in ANOTHER_MAY_HAVE_IT

    def _refresh(self) -> None:
        """Update the view of the cluster, in one thread at a time. The other threads use the current view."""
        if time.monotonic() - self._viewed_s < VIEW_S:
            return
        self._viewed_s = time.monotonic()
        try:
            self._fetch_members()
        except HeadraceError as error:
            log.info("no node reports the members of the cluster error=%s", error)

    def _fetch_members(self) -> None:
        """Fetch the members of the cluster. Raises NodeUnavailableError or NotAllowedError."""
        self._viewed_s = time.monotonic()
        cluster = self.ask("cluster", Cluster)
        nodes = {
            member.id: NodeInfo(
                member.id,
                "",
                member.id,
                member.zone,
                member.capacity_bytes,
                "",
                0,
                draining=member.draining,
                api=member.api,
            )
            for member in cluster.members
        }
        with self._lock:
            for info in nodes.values():
                if info.api and info.api not in self._known and self._may_learn(info.api):
                    tls = self._tls if info.api.startswith("https:") else None
                    self._known[info.api] = ClusterNode(Address(info.api, tls))
            self._forget_dead({info.api for info in nodes.values()})
            self._replicas = cluster.replicas
            if nodes and (self._view is None or self._view.nodes != nodes):
                self._view = next_view(self._view, nodes, epoch=0)

    def _forget_dead(self, members: set[str]) -> None:
        """Forget learned nodes that neither answer nor are members any more: each would be probed every second. The
        lock is held."""
        for url, node in list(self._known.items()):
            if node.bad and url not in members and node not in self._named and node is not self._home:
                del self._known[url]
                for link in node.idle:
                    link.close()

    def _may_learn(self, url: str) -> bool:
        """Return whether an address that a node reported may get requests. With https its certificate proves that it
        belongs to the cluster. With http nothing does, so it gets no token, and no request at all where nodes were
        named by https."""
        if url.startswith("https://"):
            return self._tls is not None
        named_by_tls = any(node.address.tls is not None for node in self._named)
        return url.startswith("http://") and self._tokens is None and not named_by_tls

    # ------------------------------------------------------------ one request

    def _send(
        self,
        node: ClusterNode,
        name: str,
        query: Query,
        body: Value | IO[bytes] | None = None,
        headers: dict[str, str] | None = None,
        *,
        link: HttpConnection | None = None,
        requests: RequestGroup | None = None,
    ) -> tuple[HttpResponse, HttpConnection]:
        """Send a request. link: a new one; otherwise an idle one, which is replaced if it turns out to be dead.
        requests: the group that holds the connection on return."""
        entry = operation(name)
        target = _target(entry.path, query)
        sent = dict(headers or {})
        if self._tokens is not None:
            sent["authorization"] = f"Bearer {self._tokens.newest}"
        data: bytes | IO[bytes] | None = None
        if isinstance(body, Value):
            sent["content-type"] = "application/json"
            data = json.dumps(msgspec.to_builtins(body)).encode()
        elif body is not None:
            sent["content-length"] = str(os.fstat(body.fileno()).st_size)
            data = body
        while True:
            link = link or self._acquire(node)
            try:
                if requests is not None:
                    requests.hold(link)
                return link.ask(entry.method, target, sent, data), link
            except BaseException as error:
                if requests is not None:
                    requests.release()
                link.close()
                if not (link.used and isinstance(error, NodeUnavailableError)):
                    raise
                link = None

    def _read_all(self, node: ClusterNode, name: str, answer: HttpResponse, link: HttpConnection) -> bytes:
        """Return the body of an answer to an operation. Raises the error of the answer, and ProtocolError for another
        status than that of the operation: a proxy may answer in place of the node, for example with a redirect."""
        if answer.status >= 400:
            raise self._error(node, answer, link)
        data = self._read_body(node, answer, link)
        if answer.status != operation(name).status:
            raise ProtocolError(node.address.who, why=f"it answers with status {answer.status}")
        return data

    def _read_body(self, node: ClusterNode, answer: HttpResponse, link: HttpConnection) -> bytes:
        """Read a whole body and release the connection, or close it. Raises ProtocolError for a body that is too
        long: the other host decides its length."""
        try:
            data = answer.read_at_most(ANSWER_BYTES_MAX)
            if data is None:
                why = f"its answer has more than {ANSWER_BYTES_MAX} bytes"
                raise ProtocolError(node.address.who, why=why)
        except BaseException:
            link.close()
            raise
        self._release(node, link)
        return data

    def _error(self, node: ClusterNode, answer: HttpResponse, link: HttpConnection) -> HeadraceError:
        """Return the error of the answer, in its own class."""
        try:
            data = self._read_body(node, answer, link)
        except HeadraceError as error:
            return error
        try:
            problem = decode_json(data, Problem)
        except msgspec.DecodeError:
            return ProtocolError(
                node.address.who, why=f"it answers with status {answer.status} and no reason"
            )
        kind = error_classes().get(problem.code, HeadraceError)
        return kind(problem.what, why=problem.why, hint=problem.hint)

    def _acquire(self, node: ClusterNode) -> HttpConnection:
        with self._lock:
            if node.idle:
                return node.idle.pop()
        return self._connect(node)

    def _connect(self, node: ClusterNode) -> HttpConnection:
        return HttpConnection(node.address, lambda: is_alive(node.address))

    def _release(self, node: ClusterNode, link: HttpConnection) -> None:
        with self._lock:
            if len(node.idle) < IDLE_LINKS_MAX and link.pid == os.getpid():
                node.idle.append(link)
                return
        link.close()

    def _reset_after_fork(self) -> None:
        """Reset a forked child. A thread that the child lacks may hold the lock, and the sockets are the parent's."""
        if self._process != os.getpid():
            self._start()


def _check(requests: RequestGroup | None) -> None:
    if requests is not None:
        requests.check()


def _probe(node: ClusterNode) -> None:
    node.bad = not is_alive(node.address)
    node.probe_at_s = time.monotonic() + PROBE_S


def _target(template: str, parameters: Query) -> str:
    path, query = template, dict(parameters)
    for name in [name for name in query if f"{{{name}}}" in template]:
        path = path.replace(f"{{{name}}}", quote(str(query.pop(name)), safe=""))
    words = {name: _word(value) for name, value in query.items()}
    return f"{path}?{urlencode(words)}" if words else path


def _word(value: Word) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return value if isinstance(value, bytes) else os.fsencode(str(value))


def _size(text: str) -> int:
    """Return the size of a file that a node names. Raises ValueError unless a file can have it."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(SIZE_BYTES_MAX))):
        raise ValueError(text[:100])
    if (size := int(text)) > SIZE_BYTES_MAX:
        raise ValueError(text)
    return size


def _size_beyond(who: str, answer: HttpResponse, start: int) -> int:
    """Return the size of a file that ends before the requested range. Raises ProtocolError."""
    try:
        size = _size(answer.header("content-range").rpartition("/")[2])
    except ValueError:
        raise ProtocolError(who, why="its answer lacks a valid content-range") from None
    if size > start:
        raise ProtocolError(who, why=f"it says that a file of {size} bytes ends before byte {start}")
    return size


def _check_version(who: str, answer: HttpResponse, path: bytes, etag: str) -> None:
    """Check that an answer names the version of its bytes, and that it is the requested one, if one was. Raises
    ProtocolError or VersionChangedError. Without it the parts of a file could be of several versions."""
    sent = answer.header("etag")
    if not sent:
        raise ProtocolError(who, why="it sends bytes and does not name their version")
    if etag and sent != etag:
        raise VersionChangedError(os.fsdecode(path), why=f"the {who} sends another version than requested")


def _received(who: str, answer: HttpResponse, start: int, end: int, into: memoryview | None) -> Fetched:
    """Read a range and check it. Raises ProtocolError for another range than the requested one."""
    span, _, size_text = answer.header("content-range").removeprefix("bytes ").partition("/")
    sums = [word for word in answer.header(SUMS_HEADER).split(",") if word]
    try:
        size = _size(size_text)
        stop = int(span.partition("-")[2]) + 1
    except ValueError:
        raise ProtocolError(who, why="its answer lacks a valid content-range") from None
    if span != f"{start}-{stop - 1}" or stop != min(end, size):
        raise ProtocolError(
            who, why=f"it sends bytes {span} of {size}, but the request was for {start} to {end}"
        )
    data: bytes | memoryview
    if into is None:
        data = answer.read_exactly(stop - start)
    else:
        data = into[: stop - start]
        answer.read_into(data)
    pieces = list(block_pieces(memoryview(data), start))
    if len(sums) != len(pieces):
        raise ProtocolError(who, why="it sends bytes without their checksums")
    for piece, checksum in zip(pieces, sums, strict=True):
        if xxhash.xxh3_64_hexdigest(piece) != checksum:
            raise CorruptBlockError(who, why="its bytes do not match their checksum")
    return Fetched(data, size, answer.header("etag"))
