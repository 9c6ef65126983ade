"""Serve another Headrace cluster as an origin, by the REST API of its nodes (wire/api.py). It can only be read.

URLs are headrace://HOST:PORT,HOST:PORT/PATH. With TLS a node's certificate must name a node of the far cluster.

Versions are those of the far cluster, and it decides whether a read has the version that is meant (If-Match). Its bytes
come with checksums of their blocks and are compared with them. If a node does not answer, the next one of the list gets
the request.

The far side is not trusted: each answer is bounded, and decoded strictly.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import xxhash

from headrace.base.deadline import Deadline
from headrace.base.decoding import convert, decode_json
from headrace.base.errors import (
    BucketNotFoundError,
    DeadlineExceededError,
    HeadraceError,
    NodeUnavailableError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
    UsageError,
    VersionChangedError,
)
from headrace.base.file_times import TIME_NS_MAX, TIME_NS_MIN
from headrace.base.model import Arrived, ObjectInfo, Version, block_pieces
from headrace.base.namespace_path import check_name
from headrace.http.node_connection import Address, HttpConnection, HttpResponse, is_alive
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.origin.options import OriginOptions
from headrace.origin.origin import ListPage, check_range, is_path
from headrace.origin.read_only import ReadOnlyCalls
from headrace.origin.threads import Threads
from headrace.wire.api import (
    PAGE_NAMES,
    SUMS_HEADER,
    SUMS_WORD,
    TOKEN_HEADER,
    ApiEntries,
    ApiEntry,
    Problem,
    Value,
    etag_of,
    operation,
)

ANSWER_BYTES_MAX = 16 << 20
"""The largest answer in JSON: a page of names, each of which JSON may write with six characters a byte."""
PROBLEM_BYTES_MAX = 64 << 10
IDLE_MAX = 32
SIZE_BYTES_MAX = 1 << 62
_TOKEN = re.compile(r'(W/)?"[\x21\x23-\x7e]{1,1024}"')
"""Matches versions as ETags. They are sent back in a header, so they have no space and no control character."""
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]{0,4096}")
_MISSING = ("path.not_found", "path.stale")
_BUSY = frozenset(
    {
        *(
            "origin.unavailable",
            "deadline",
            "node.unavailable",
            "store.no_space",
            "store.busy",
            "store.evicted",
        ),
        *("store.corrupt_index", "store.corrupt_block", "store.in_use", "peer.failed", "peer.not_owner"),
        *("cluster.unavailable", "path.stale", "cancelled"),
    }
)
"""Errors of a far node that may be over at the next attempt."""

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")
HOSTS_MAX = 64
CERTIFICATES = "certificates"
"""The option that names the directory of this side's certificate."""
PORT_DIGITS_MAX = 5

Reply = TypeVar("Reply", bound=Value)
Result = TypeVar("Result")


def parse_far_url(rest: str) -> tuple[list[str], str]:
    """Return the nodes as HOST:PORT, and the path: absolute, "" for all. rest: the URL after its scheme. Raise
    UsageError."""
    hosts, _, path = rest.partition("/")
    nodes = [_node_of(text) for text in hosts.split(",")]
    if len(nodes) > HOSTS_MAX:
        raise UsageError("headrace://…", why=f"it names {len(nodes)} nodes: {HOSTS_MAX} are allowed")
    path = path.strip("/")
    if not is_path(path):
        raise UsageError(f"headrace://{hosts}/…", why="the path has an empty, . or .. component")
    return nodes, f"/{path}" if path else ""


def _node_of(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not _HOST.fullmatch(host)
        or not port.isascii()
        or not port.isdecimal()
        or len(port) > PORT_DIGITS_MAX
        or not 0 < int(port) < 65536
    ):
        raise UsageError(
            "headrace://…",
            why="a node of the far cluster is not HOST:PORT",
            hint="write headrace://HOST:PORT,HOST:PORT/path with the REST addresses of its nodes",
        )
    return f"{host.lower()}:{int(port)}"


def build_far_cluster(url: str, options: OriginOptions) -> FarClusterOrigin:
    """Build the origin of a far cluster. Raise UsageError as `open_far_nodes` does."""
    return FarClusterOrigin(url, *open_far_nodes(url, options))


def open_far_nodes(url: str, options: OriginOptions) -> tuple[FarNodes, str]:
    """Return the nodes of a far cluster, to which nothing is sent yet, and the path of the URL. Raise UsageError for
    options that don't fit, and for certificates that can't be read."""
    nodes, path = parse_far_url(url.partition("://")[2])
    tls = _tls_of(url, options)
    scheme = "http" if tls is None else "https"
    addresses = [Address(f"{scheme}://{node}", tls, CERTIFICATES) for node in nodes]
    if not _TOKEN_TEXT.fullmatch(options.token):
        raise UsageError(url, why="option token must consist of printable ASCII characters without spaces")
    return FarNodes(addresses, options.token), path


def _tls_of(url: str, options: OriginOptions) -> MutualTls | ssl.SSLContext | None:
    if options.allow_http:
        if options.certificates:
            raise UsageError(url, why="allow_http and certificates exclude each other")
        return None
    if not options.certificates:
        return ssl.create_default_context()
    folder = os.path.expanduser(options.certificates)
    names = ("certificate.pem", "key.pem", "authority.pem")
    certificate, key, authority = (os.path.join(folder, name) for name in names)
    return MutualTls(TlsFiles(certificate, key, authority, option=CERTIFICATES))


class FarRequest:
    """A request that one thread makes and another may end. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._link: HttpConnection | None = None
        self.is_ended = self.is_late = False

    def hold(self, link: HttpConnection) -> None:
        """Note the connection that is in use. Raise NodeUnavailableError if the request was ended."""
        with self._lock:
            if self.is_ended:
                raise NodeUnavailableError(link.address.who, why="the request was ended")
            self._link = link

    def release(self) -> None:
        with self._lock:
            self._link = None

    def end(self, *, is_late: bool = False) -> None:
        """Let the thread return at once. is_late: the node took too long."""
        with self._lock:
            self.is_ended, self.is_late = True, self.is_late or is_late
            if self._link is not None:
                self._link.abort()


class FarNodes:
    """Holds the connections to the nodes of a far cluster. addresses: in order of preference; the last one that
    answered is asked first. token: "" for none. Thread-safe; calls block."""

    def __init__(self, addresses: Sequence[Address], token: str) -> None:
        self._addresses = list(addresses)
        self._token = token
        self._current = 0
        self._idle: list[HttpConnection] = []
        self._requests: set[FarRequest] = set()
        self._lock = threading.Lock()
        self._closed = False

    def ask(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        read: Callable[[HttpResponse], Result | HeadraceError],
        *,
        request: FarRequest,
    ) -> Result:
        """Return what `read` makes of the answer, which it reads as a whole; an error that it returns is raised. A node
        that does not answer, breaks off or is overloaded is followed by the next. Raise the error of the first if none
        can answer."""
        if self._token:
            headers = {**headers, TOKEN_HEADER: f"Bearer {self._token}"}
        with self._lock:
            self._requests.add(request)
            if self._closed:
                request.end()
        try:
            return self._ask_in_turn(method, target, headers, read, request=request)
        finally:
            with self._lock:
                self._requests.discard(request)

    def _ask_in_turn(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        read: Callable[[HttpResponse], Result | HeadraceError],
        *,
        request: FarRequest,
    ) -> Result:
        failure: HeadraceError | None = None
        first = self._current
        for step in range(len(self._addresses)):
            number = (first + step) % len(self._addresses)
            try:
                result = self._ask_node(
                    self._addresses[number], method, target, headers, read, request=request
                )
            except NodeUnavailableError as error:
                if request.is_ended:
                    if request.is_late:  # the next request must not wait for it as well
                        self._current = (number + 1) % len(self._addresses)
                    raise
                failure = failure or error
                continue
            if isinstance(result, OriginUnavailableError):
                failure = failure or result
                continue
            self._current = number
            if isinstance(result, HeadraceError):
                raise result
            return result
        assert failure is not None
        raise failure

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links, self._idle = self._idle, []
            requests = list(self._requests)
        for request in requests:
            request.end()
        for link in links:
            link.close()

    def _ask_node(
        self,
        address: Address,
        method: str,
        target: str,
        headers: dict[str, str],
        read: Callable[[HttpResponse], Result | HeadraceError],
        *,
        request: FarRequest,
    ) -> Result | HeadraceError:
        while True:
            link, is_new = self._acquire(address)
            try:
                request.hold(link)
                result = read(link.ask(method, target, headers))
            except NodeUnavailableError:
                link.close()
                if is_new or request.is_ended:
                    raise
                continue  # the node closed an idle connection
            except BaseException:
                link.close()
                raise
            finally:
                request.release()
            self._release(link)
            return result

    def _acquire(self, address: Address) -> tuple[HttpConnection, bool]:
        with self._lock:
            for link in self._idle:
                if link.address is address:
                    self._idle.remove(link)
                    return link, False
        return HttpConnection(address, lambda: is_alive(address)), True

    def _release(self, link: HttpConnection) -> None:
        with self._lock:
            if link.is_open and len(self._idle) < IDLE_MAX and not self._closed:
                self._idle.append(link)
                return
        link.close()


class FarClusterOrigin(ReadOnlyCalls):
    """Serves a path of a far cluster as an origin. path: absolute, without a slash at its end; "" for all."""

    def __init__(self, url: str, nodes: FarNodes, path: str) -> None:
        self.url = url
        self._nodes = nodes
        self._path = path
        self._threads = Threads()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        target = self._where(key)
        if not key or not is_path(key):
            raise PathNotFoundError(target, why="no such object")
        query = {"path": self._full(key), "follow": "true"}
        entry = await self._json("getEntry", query, ApiEntry, target, deadline)
        version = _version_of(entry)
        if version is None:
            raise PathNotFoundError(target, why="no such object")
        return ObjectInfo(key, version)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """List a directory. Links are left out, as object stores have none."""
        target = self._where(key)
        if not is_path(key):
            return
        after = ""
        while True:
            query = {"path": self._full(key) or "/", "after": after, "limit": str(PAGE_NAMES)}
            try:
                page = await self._json("listEntries", query, ApiEntries, target, deadline)
            except PathNotFoundError:
                if key:
                    return
                raise BucketNotFoundError(self.url, why="the far cluster has no such directory") from None
            yield _list_page(key, self._full(key), page)
            if page.next is None:
                return
            if len(page.entries) > PAGE_NAMES or not _is_later(page.next, after):
                raise OriginError(target, why="the far cluster lists without end")
            after = page.next

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        target = self._where(key)
        check_range(target, start, end, version)
        headers = {
            "range": f"bytes={start}-{end - 1}",
            "if-match": version.token,
            SUMS_HEADER: SUMS_WORD,
        }
        address = _target("readContent", {"path": self._full(key)})

        def read(response: HttpResponse) -> bytes | HeadraceError:
            if response.status != 206:
                return _error_of(response, target, missing=VersionChangedError)
            if response.header("content-range") != f"bytes {start}-{end - 1}/{version.size_bytes}":
                raise VersionChangedError(target, why="the far cluster sends another range or size")
            body = response.read_exactly(end - start)
            _check_sums(target, body, start, response.header(SUMS_HEADER))
            return body

        def ask(request: FarRequest) -> bytes:
            return self._nodes.ask("GET", address, headers, read, request=request)

        return Arrived(await call_far(self._threads, ask, target, deadline))

    async def close(self) -> None:
        self._nodes.close()
        self._threads.close()

    async def _json(
        self, name: str, query: dict[str, str], kind: type[Reply], target: str, deadline: Deadline
    ) -> Reply:
        def ask(request: FarRequest) -> Reply:
            return ask_json(self._nodes, name, query, kind, target, request=request)

        return await call_far(self._threads, ask, target, deadline)

    def _full(self, key: str) -> str:
        return f"{self._path}/{key}" if key else self._path

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


async def call_far(
    threads: Threads, call: Callable[[FarRequest], Result], target: str, deadline: Deadline
) -> Result:
    """Return what a request returns. One that is cancelled or late is ended, so that no thread waits for a node that is
    silent. Raise OriginUnavailableError if no node answers, and the errors of the request."""
    request = FarRequest()
    try:
        return await threads.call(lambda: call(request), target, deadline)
    except NodeUnavailableError as error:
        raise OriginUnavailableError(target, why=str(error)) from error
    except DeadlineExceededError:
        request.end(is_late=True)
        raise
    finally:
        request.end()


def ask_json(
    nodes: FarNodes,
    name: str,
    query: dict[str, str],
    kind: type[Reply],
    target: str,
    *,
    request: FarRequest,
) -> Reply:
    """Return the answer to a request without a body. Blocks. Raise OriginError and its kinds, PathNotFoundError, and
    NodeUnavailableError if no node answers. target: for messages."""

    def read(response: HttpResponse) -> Reply | HeadraceError:
        if response.status != 200:
            return _error_of(response, target, missing=PathNotFoundError)
        body = response.read_at_most(ANSWER_BYTES_MAX)
        if body is None:
            raise OriginError(target, why=f"an answer has more than {ANSWER_BYTES_MAX} bytes")
        try:
            return convert(json.loads(body), kind)
        except (ValueError, RecursionError):  # msgspec's are ValueErrors, too
            raise OriginError(target, why="an answer is none of the REST API") from None

    return nodes.ask("GET", _target(name, query), {}, read, request=request)


def _target(name: str, query: dict[str, str]) -> str:
    """Return the target of a request. Names that are not UTF-8 have their own bytes in it."""
    words = {word: os.fsencode(value) for word, value in query.items()}
    return f"{operation(name).path}?{urlencode(words)}"


def _version_of(entry: ApiEntry) -> Version | None:
    """Return the version of a file as the far cluster names it; None for anything else, and for a version that can't be
    one."""
    token = etag_of(entry.version)
    is_valid = 0 <= entry.size_bytes <= SIZE_BYTES_MAX and TIME_NS_MIN <= entry.mtime_ns <= TIME_NS_MAX
    if entry.kind != "file" or not is_valid or not _TOKEN.fullmatch(token):
        return None
    return Version(entry.size_bytes, entry.mtime_ns, token)


def _is_later(name: str, after: str) -> bool:
    """Return whether a name is one, and comes after another in the order of bytes."""
    try:
        return os.fsencode(name) > os.fsencode(after)
    except UnicodeEncodeError:  # it has half of a surrogate pair
        return False


def _list_page(key: str, directory: str, page: ApiEntries) -> ListPage:
    """Return the names of a page that can be names, each once."""
    objects: dict[str, ObjectInfo] = {}
    directories: dict[str, None] = {}
    for entry in page.entries:
        name = entry.path.rpartition("/")[2]
        try:
            check_name(os.fsencode(name))
        except ValueError:
            continue
        if entry.path != f"{directory}/{name}":
            continue
        version = _version_of(entry)
        if entry.kind == "directory":
            directories[name] = None
        elif version is not None:
            child = f"{key}/{name}" if key else name
            objects[name] = ObjectInfo(child, version)
    return ListPage(tuple(objects.values()), tuple(directories))


def _error_of(response: HttpResponse, target: str, *, missing: type[HeadraceError]) -> HeadraceError:
    """Return the error that a far node reports, without its text. missing: for a path that is not there."""
    status = response.status
    body = response.read_at_most(PROBLEM_BYTES_MAX)
    if body is None:
        raise OriginError(target, why=f"an answer with status {status} has no end")
    try:
        code = decode_json(body, Problem).code
    except msgspec.DecodeError:
        code = ""
    if not re.fullmatch(r"[a-z_.]{1,40}", code):
        code = ""
    why = f"the far cluster answers with status {status}" + (f", {code}" if code else "")
    if status in (401, 403):
        return OriginDeniedError(target, why=why, hint="check the token or the certificate of the mount")
    if code in _MISSING and status == 404:
        return missing(target, why="no such object")
    if code in ("path.not_a_directory", "path.is_a_directory"):
        return missing(target, why=why)
    if status == 412 or code == "origin.version_changed":
        return VersionChangedError(target, why="the far cluster has another version")
    if code in _BUSY or status in (429, 502, 503, 504, 507):
        return OriginUnavailableError(target, why=why)
    return OriginError(target, why=why)


def _check_sums(target: str, body: bytes, start: int, text: str) -> None:
    """Compare the bytes with the checksums of their blocks. Raise OriginUnavailableError if they were damaged."""
    sums = [word for word in text.split(",") if word]
    pieces = list(block_pieces(memoryview(body), start))
    if len(sums) != len(pieces):
        raise OriginError(target, why="the far cluster sends bytes without their checksums")
    for piece, checksum in zip(pieces, sums, strict=True):
        if xxhash.xxh3_64_hexdigest(piece) != checksum:
            raise OriginUnavailableError(target, why="the bytes do not match their checksum")
