"""From a request to its answer: which operation, and errors as RemoteException.

`cached` is for the door's thread: it answers what needs no wait. `answer` may wait for the node, the disk and the
client's body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from headrace.base.errors import HeadraceError
from headrace.base.refusals import Refusals
from headrace.base.tokens import Tokens
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.sender import trouble_with_sender
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.request_stats import UNKNOWN, CountedBody, RequestStats
from headrace.webhdfs import responses
from headrace.webhdfs.errors import RemoteError, remote_error_of, remote_error_of_request
from headrace.webhdfs.locations import Locations
from headrace.webhdfs.read_ops import Reading
from headrace.webhdfs.routes import WebHdfsCall, route
from headrace.webhdfs.tokens import token_of
from headrace.webhdfs.write_ops import WriteOperations

log = logging.getLogger(__name__)


class WebHdfsGateway:
    """replicas: how many nodes own a file, for who asks where it is. loopback: it listens there only. tokens: of which
    who asks must show one; None: nobody is asked for one."""

    def __init__(self, paths: LocalVfs, tokens: Tokens | None, *, replicas: int, loopback: bool) -> None:
        self._loopback = loopback
        self._tokens = tokens
        self._refusals = Refusals(log, "webhdfs")
        self._reading = Reading(paths, Locations(paths.client.status, replicas=replicas))
        self._writing = WriteOperations(paths)
        self.counts = RequestStats()

    def _check(self, request: Request) -> None:
        """RemoteError for who may not ask. A web page may not, also where a browser has a certificate to show."""
        trouble = trouble_with_sender(request, (), loopback=self._loopback)
        if trouble:
            raise RemoteError("AccessControlException", trouble)
        if self._tokens is None:
            if any(name.lower() == "delegation" for name, _ in request.query):
                raise RemoteError("InvalidToken", "no delegation tokens are issued here")
        elif not (shown := token_of(request)):
            raise RemoteError(
                "SecurityException", "Authentication required: no token is shown, see webhdfs_token"
            )
        elif not self._tokens.accept(shown):
            raise RemoteError("InvalidToken", "this is no valid token, see webhdfs_token")
        request.who = request.certificate or ("token" if self._tokens else "anyone")

    def _let_in(self, request: Request) -> None:
        """RemoteError, which is logged."""
        try:
            self._check(request)
        except RemoteError as error:
            who = request.certificate or request.argument("user.name")
            self._refusals.add(error.message, address=request.address, who=who)
            raise

    def admit(self, request: Request) -> Response | None:
        """The refusal that the head alone decides, before the body is read; None: go on."""
        try:
            self._let_in(request)
        except RemoteError as error:
            return self._counted(UNKNOWN, _as_taken(request, responses.failed(error)))
        return None

    def cached(self, request: Request) -> Response | None:
        """None: it has to be asked for by `answer`. Never waits."""
        if request.method != "GET":
            return None
        try:
            self._check(request)
            call = route(request)
            found = None
            if call.operation == "open":
                found = self._reading.open_cached(call)
            elif call.operation == "get_status":
                found = self._reading.get_status_cached(call)
        except (RemoteError, HeadraceError):
            return None  # told by `answer`
        except Exception:  # the door's thread has to go on; `answer` will meet it, too
            log.exception("request failed method=%s path=%s", request.method, request.path)
            return None
        return None if found is None else self._counted(call.operation, _as_taken(request, found))

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """pieces: of the body. HungUpError."""
        operation, received = UNKNOWN, CountedBody(pieces)
        try:
            self._let_in(request)
            call = route(request)
            operation = call.operation
            response = self._answered(request, call, received)
        except RemoteError as error:
            response = responses.failed(error)
        finally:
            self.counts.received(operation, received.count)
        return self._counted(operation, _as_taken(request, response))

    def _counted(self, operation: str, response: Response) -> Response:
        self.counts.add(operation, response.status, response.body_bytes)
        return response

    def _answered(self, request: Request, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        """Errors are answers. HungUpError."""
        try:
            return self._do(call, pieces)
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
            log.exception("request failed method=%s path=%s", request.method, request.path)
            return responses.failed(
                RemoteError("RuntimeException", f"{type(error).__name__}: a defect, see the log")
            )

    def refuse(self, error: BadRequestError) -> Response:
        return responses.failed(remote_error_of_request(error))

    def marks(self, _: Response) -> list[tuple[str, str]]:
        return [("Cache-Control", "no-cache")]

    def clean(self) -> None:
        """Nothing is left behind."""

    def _do(self, call: WebHdfsCall, pieces: Iterator[bytes]) -> Response:
        with_body: dict[str, Callable[[WebHdfsCall, Iterator[bytes]], Response]] = {
            "create": self._writing.create,
            "append": self._writing.append,
        }
        if call.operation in with_body:
            return with_body[call.operation](call, pieces)
        reading, writing = self._reading, self._writing
        without: dict[str, Callable[[WebHdfsCall], Response]] = {
            "open": reading.open,
            "get_status": reading.get_status,
            "get_link_status": reading.get_link_status,
            "get_link_target": reading.get_link_target,
            "list_status": reading.list_status,
            "list_batch": reading.list_batch,
            "get_summary": reading.get_summary,
            "get_quota": reading.get_quota,
            "get_checksum": reading.get_checksum,
            "get_locations": reading.get_locations,
            "get_located_blocks": reading.get_located_blocks,
            "get_home": reading.get_home,
            "get_trash": reading.get_trash,
            "get_defaults": reading.get_defaults,
            "get_room": reading.get_room,
            "get_acl": reading.get_acl,
            "get_xattrs": reading.get_xattrs,
            "list_xattrs": reading.list_xattrs,
            "get_token": reading.get_token,
            "check_access": writing.check_access,
            "make_directories": writing.make_directories,
            "rename": writing.rename,
            "set_permission": writing.set_permission,
            "set_owner": writing.set_owner,
            "set_times": writing.set_times,
            "set_replication": writing.set_replication,
            "truncate": writing.truncate,
            "delete": writing.delete,
        }
        return without[call.operation](call)


def _as_taken(request: Request, response: Response) -> Response:
    """Hadoop's client (3.5.0, as Spark 4.3 ships it) reads JSON whose type is not told, and fails where it is: to look
    at the type it wants a class that its shaded jar has not got."""
    if responses.JSON in response.headers and request.header("user-agent").startswith("Java/"):
        response.headers.remove(responses.JSON)
    response.bodiless = request.method == "HEAD"  # no operation has it, and its answer must not have a body
    return response
