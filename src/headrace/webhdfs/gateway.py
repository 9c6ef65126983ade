"""Answer the requests of WebHDFS clients: check who sent them, route them, and encode errors as RemoteException.

`cached` runs in the server's thread, and answers what needs no wait. `answer` may wait for node, disk and body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.base.errors import HeadraceError
from headrace.base.refusals import Refusals
from headrace.base.tokens import Tokens
from headrace.client.request_stats import UNKNOWN, CountedBody, RequestStats
from headrace.http.disk_errors import DiskErrors
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.sender import sender_refusal
from headrace.vfs.local_vfs import LocalVfs
from headrace.webhdfs import responses
from headrace.webhdfs.errors import RemoteError, remote_error_of, remote_error_of_request
from headrace.webhdfs.file_system_ops import FileSystemOperations
from headrace.webhdfs.locations import Locations
from headrace.webhdfs.read_ops import ReadOperations
from headrace.webhdfs.routes import WebHdfsCall, route
from headrace.webhdfs.status_ops import StatusOperations
from headrace.webhdfs.tokens import token_of
from headrace.webhdfs.write_ops import WriteOperations

log = logging.getLogger(__name__)


class WebHdfsGateway:
    """Serves the namespace to WebHDFS clients. `replicas` is the number of owners of a file that are its locations.
    `loopback`: it listens on loopback only. A client must send one of `tokens`; None allows everyone."""

    def __init__(self, vfs: LocalVfs, tokens: Tokens | None, *, replicas: int, loopback: bool) -> None:
        self._loopback = loopback
        self._tokens = tokens
        self._refusals = Refusals(log, "webhdfs")
        self._disk_errors = DiskErrors(log, "webhdfs")
        reads = ReadOperations(vfs, Locations(vfs.client.status, replicas=replicas))
        statuses, file_system, writes = StatusOperations(vfs), FileSystemOperations(vfs), WriteOperations(vfs)
        self._cached: dict[str, Callable[[WebHdfsCall], Response | None]] = {
            "open": reads.open_cached,
            "get_status": statuses.get_status_cached,
        }
        self._with_body: dict[str, Callable[[WebHdfsCall, Iterator[bytes]], Response]] = {
            "create": writes.create,
            "append": writes.append,
        }
        self._without_body: dict[str, Callable[[WebHdfsCall], Response]] = {
            "open": reads.open,
            "get_status": statuses.get_status,
            "get_link_status": statuses.get_link_status,
            "get_link_target": statuses.get_link_target,
            "list_status": statuses.list_status,
            "list_batch": statuses.list_batch,
            "get_summary": statuses.get_summary,
            "get_quota": statuses.get_quota,
            "get_checksum": reads.get_checksum,
            "get_locations": reads.get_locations,
            "get_located_blocks": reads.get_located_blocks,
            "get_home": file_system.get_home,
            "get_trash": file_system.get_trash,
            "get_defaults": file_system.get_defaults,
            "get_room": file_system.get_room,
            "get_acl": statuses.get_acl,
            "get_xattrs": statuses.get_xattrs,
            "list_xattrs": statuses.list_xattrs,
            "get_token": file_system.get_token,
            "check_access": writes.check_access,
            "make_directories": writes.make_directories,
            "rename": writes.rename,
            "set_permission": writes.set_permission,
            "set_owner": writes.set_owner,
            "set_times": writes.set_times,
            "set_replication": writes.set_replication,
            "truncate": writes.truncate,
            "delete": writes.delete,
        }
        self.counts = RequestStats()

    def _check(self, request: Request) -> None:
        """Raise RemoteError where access is denied, also for a web page whose browser has a certificate."""
        trouble = sender_refusal(request, (), loopback=self._loopback)
        if trouble:
            raise RemoteError("AccessControlException", trouble)
        if self._tokens is None:
            if any(name.lower() == "delegation" for name, _ in request.query):
                raise RemoteError("InvalidToken", "no delegation tokens are issued here")
        elif not (token := token_of(request)):
            raise RemoteError(
                "SecurityException", "Authentication required: the request has no token, see webhdfs_token"
            )
        elif not self._tokens.accept(token):
            raise RemoteError("InvalidToken", "the token is not valid, see webhdfs_token")
        request.authenticate(request.certificate or ("token" if self._tokens else "anyone"))

    def _authenticate(self, request: Request) -> None:
        """Check the request; log the refusal, and raise RemoteError where access is denied."""
        try:
            self._check(request)
        except RemoteError as error:
            who = request.certificate or request.argument("user.name")
            self._refusals.add(error.message, address=request.address, who=who)
            raise

    def admit(self, request: Request) -> Response | None:
        """Return the refusal that the head alone decides, before the body is read; None to continue."""
        try:
            self._authenticate(request)
        except RemoteError as error:
            return self._counted(UNKNOWN, _for_client(request, responses.failed(error)))
        return None

    def cached(self, request: Request) -> Response | None:
        """Answer a read of cached data, without waiting. None: `answer` must serve the request."""
        if request.method != "GET":
            return None
        try:
            self._check(request)
            call = route(request)
            cached = self._cached.get(call.operation)
            response = None if cached is None else cached(call)
        except (RemoteError, HeadraceError):
            return None  # `answer` reports it
        except Exception as error:  # the server's thread must continue; `answer` raises it again
            if not self._disk_errors.includes(error):
                log.exception("request failed method=%s path=%s", request.method, request.path)
            return None
        return None if response is None else self._counted(call.operation, _for_client(request, response))

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """Serve a request. `pieces` yields its body. Raises HungUpError."""
        operation, received = UNKNOWN, CountedBody(pieces)
        try:
            self._authenticate(request)
            call = route(request)
            operation = call.operation
            response = self._serve(request, call, received)
        except RemoteError as error:
            response = responses.failed(error)
        finally:
            self.counts.received(operation, received.count)
        return self._counted(operation, _for_client(request, response))

    def _counted(self, operation: str, response: Response) -> Response:
        self.counts.add(operation, response.status, response.body_bytes)
        return response

    def _serve(self, request: Request, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        """Serve a routed request, and turn errors into responses. Raises HungUpError."""
        try:
            return self._run(call, pieces)
        except RemoteError as error:
            return responses.failed(error)
        except BadRequestError as error:
            return self.refuse(error)
        except HeadraceError as error:
            if not error.retryable:
                log.info("request failed path=%s error=%s", request.path, error)
            return responses.failed(remote_error_of(error))
        except HungUpError:
            raise
        except Exception as error:
            if (answer := self._disk_errors.answered(error, request.path)) is not None:
                return responses.failed(remote_error_of(answer))
            log.exception("request failed method=%s path=%s", request.method, request.path)
            return responses.failed(
                RemoteError("RuntimeException", f"{type(error).__name__}: a defect, see the log")
            )

    def refuse(self, error: BadRequestError) -> Response:
        return responses.failed(remote_error_of_request(error))

    def marks(self, _: Response) -> list[tuple[str, str]]:
        return [("Cache-Control", "no-cache")]

    def clean(self) -> None:
        """Do nothing: requests leave nothing behind."""

    def _run(self, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        with_body = self._with_body.get(call.operation)
        return self._without_body[call.operation](call) if with_body is None else with_body(call, pieces)


def _for_client(request: Request, response: Response) -> Response:
    """Adapt a response to its client. Hadoop's client (3.5.0, as Spark 4.3 ships it) reads JSON without a
    Content-Type, and fails with one: it then needs a class that its shaded jar does not have."""
    if responses.JSON in response.headers and request.header("user-agent").startswith("Java/"):
        response.headers.remove(responses.JSON)
    return response
