"""Answer the requests of the REST API: find the operation (`wire/api.py`), check access, decode and encode JSON.

`files.py`, `jobs.py` and `metrics.py` do the operations; the others are one message to the node.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from headrace.base.decoding import convert, convert_words
from headrace.base.errors import (
    HeadraceError,
    NotAllowedError,
    OriginError,
    PathNotFoundError,
    UsageError,
)
from headrace.base.refusals import Refusals
from headrace.base.tokens import Tokens
from headrace.http.disk_errors import DiskErrors
from headrace.http.errors import BadRequestError, HttpFault, HungUpError
from headrace.http.messages import Request, Response
from headrace.rest import metrics, openapi
from headrace.rest.bodies import read_whole
from headrace.rest.changes import ChangeFeed
from headrace.rest.events import EventOperations, confirm
from headrace.rest.files import FileOperations, path_of
from headrace.rest.jobs import JobOperations
from headrace.rest.problems import MEDIA_TYPE, RefusedError, problem_of, status_of
from headrace.rest.readiness import Readiness
from headrace.vfs.local_vfs import LocalVfs
from headrace.wire.api import (
    BODY_BYTES_MAX,
    OPERATIONS,
    TEXT,
    TOKEN_HEADER,
    ApiLocation,
    ApiMember,
    ApiMount,
    ApiMounts,
    ApiPlans,
    ApiPolicy,
    ApiPolicyAdvice,
    ApiPolicyDecisions,
    ApiPolicyOutcomes,
    ApiSeals,
    ApiStatus,
    ApiTrace,
    Cluster,
    Health,
    Operation,
    Value,
)
from headrace.wire.api import ApiJobs as JobsReply
from headrace.wire.location_messages import LocationAsk, LocationShown
from headrace.wire.messages import Done, MountAdd, MountList, MountRemove, PlanList
from headrace.wire.messages import Mounts as MountRows
from headrace.wire.plan_answers import PlanRow, PlanRows
from headrace.wire.policy_messages import (
    PolicyAdvise,
    PolicyAdvised,
    PolicyAsk,
    PolicyExplain,
    PolicyExplained,
    PolicyRollBack,
    PolicySet,
    PolicyShown,
    PolicyTried,
    PolicyTry,
)
from headrace.wire.seal_messages import SealList, SealRow, SealRows
from headrace.wire.trace_messages import MountTraced, TraceMount

log = logging.getLogger(__name__)

_NO_BODY: Iterator[bytes] = iter(())
Handler = Callable[[Request, Any, Any], Any]
"""Serves an operation. Arguments: the request, its parameters, its body as a Value or as pieces of bytes. Returns a
Value, a Response or None."""


class Handlers:
    """Holds the function of each operation, shared by all servers of the process."""

    def __init__(self, vfs: LocalVfs) -> None:
        client = self._client = vfs.client
        files, jobs = FileOperations(vfs), JobOperations(client)
        self._events = EventOperations(client)
        self._changes = ChangeFeed(client)
        self._readiness = Readiness(client.socket)
        self.table: dict[str, Handler] = {
            "health": lambda *_: Health(ready=True),
            "ready": lambda *_: self._ready(),
            "metrics": lambda *_: Response(
                200, [("Content-Type", TEXT)], body=metrics.page(client.status()).encode()
            ),
            "document": lambda *_: _json_response(200, openapi.text().encode()),
            "status": lambda *_: ApiStatus(client.status()),
            "cluster": lambda *_: cluster_of(client.status()),
            "listMounts": lambda *_: ApiMounts(self._mounts()),
            "addMount": lambda _, __, body: self._add_mount(body),
            "removeMount": lambda _, query, __: self._ask_done(MountRemove(path=_path_text(query.path))),
            "listSeals": lambda _, query, __: ApiSeals(self._seals(from_origin=query.origin)),
            "listPlans": lambda *_: ApiPlans(self._plans()),
            "getPolicy": lambda _, query, __: self._policy(PolicyAsk(number=query.number)),
            "setPolicy": lambda _, __, body: self._policy(_policy_set(body)),
            "rollBackPolicy": lambda _, __, body: self._policy(PolicyRollBack(int(body.number), body.author)),
            "tryPolicy": lambda _, __, body: self._try_policy(body.text),
            "advisePolicy": lambda _, __, ___: self._advise_policy(),
            "explainPolicy": lambda _, query, __: self._explain_policy(query.path),
            "listChanges": lambda _, query, __: self._changes.page(query),
            "traceMount": lambda _, query, __: self._trace_mount(query),
            "receiveEvents": lambda _, __, pieces: self._events.receive(pieces),
            "confirmEvents": lambda request, _, __: confirm(request),
            "explainLocation": lambda _, query, __: self._explain_location(query.path),
            "listJobs": lambda *_: JobsReply(jobs.all()),
            "startJob": lambda _, __, body: jobs.start(
                msgspec.structs.replace(body, path=_path_text(body.path))
            ),
            "getJob": lambda _, query, __: jobs.get(query.id, query.wait_s),
            "cancelJob": lambda _, query, __: jobs.cancel(query.id),
            "retryJob": lambda _, query, __: jobs.retry(query.id),
            "getEntry": lambda _, query, __: files.entry(query),
            "removeEntry": lambda _, query, __: files.remove(query),
            "listEntries": lambda _, query, __: files.page(query),
            "makeDirectory": lambda _, query, __: files.make_directory(query.path),
            "rename": lambda _, __, body: files.rename(body),
            "readContent": lambda request, query, _: files.read(request, query.path),
            "writeContent": files.write,
        }

    def _ready(self) -> Health:
        self._readiness.check()
        return Health(ready=True)

    def _mounts(self) -> list[ApiMount]:
        answer = self._client.ask(MountList())
        assert isinstance(answer, MountRows)
        return [ApiMount(row.path, row.url, row.sync_interval_s) for row in answer.rows]

    def _plans(self) -> list[PlanRow]:
        answer = self._client.ask(PlanList())
        assert isinstance(answer, PlanRows)
        return answer.rows

    def _policy(self, request: PolicyAsk | PolicySet | PolicyRollBack) -> ApiPolicy:
        answer = self._client.ask(request)
        assert isinstance(answer, PolicyShown)
        return ApiPolicy(answer.number, answer.text, answer.versions, answer.unanswered, answer.warnings)

    def _try_policy(self, text: str) -> ApiPolicyOutcomes:
        answer = self._client.ask(PolicyTry(text))
        assert isinstance(answer, PolicyTried)
        return ApiPolicyOutcomes(answer.outcomes, answer.unanswered, answer.warnings)

    def _advise_policy(self) -> ApiPolicyAdvice:
        answer = self._client.ask(PolicyAdvise())
        assert isinstance(answer, PolicyAdvised)
        return ApiPolicyAdvice(answer.outlooks, answer.advice)

    def _explain_policy(self, path: str) -> ApiPolicyDecisions:
        answer = self._client.ask(PolicyExplain(path_of(path)))
        assert isinstance(answer, PolicyExplained)
        return ApiPolicyDecisions(answer.decisions)

    def _trace_mount(self, query: Any) -> ApiTrace:
        mount = TraceMount(path_of(query.path), query.instance, path_of(query.mount), int(query.hops))
        answer = self._client.ask(mount)
        assert isinstance(answer, MountTraced)
        return ApiTrace(answer.leads_back)

    def _explain_location(self, path: str) -> ApiLocation:
        answer = self._client.ask(LocationAsk(path_of(path)))
        assert isinstance(answer, LocationShown)
        return ApiLocation(answer.location)

    def _seals(self, *, from_origin: bool) -> list[SealRow]:
        answer = self._client.ask(SealList(from_origin=from_origin))
        assert isinstance(answer, SealRows)
        return answer.rows

    def _add_mount(self, body: Any) -> ApiMount:
        path = _path_text(body.path)
        try:
            self._ask_done(MountAdd(path=path, url=body.url, options=body.options, restricted=True))
        except OriginError as error:  # the client chose the origin
            raise RefusedError(422, error) from error
        mount = next((row for row in self._mounts() if row.path == path), None)
        return mount or ApiMount(path, body.url, 0.0)

    def _ask_done(self, message: MountAdd | MountRemove) -> None:
        answer = self._client.ask(message)
        assert isinstance(answer, Done)


def _policy_set(body: Any) -> PolicySet:
    return PolicySet(body.text, body.author, None if body.base is None else int(body.base))


class RestGateway:
    """Serves one listening address. A client must send one of `tokens`; None allows everyone who can connect.
    `events_tokens` permit no more than to report events. `pages`
    returns why a web page's request is refused, by the rule of http/sender.py; None where no page can connect."""

    def __init__(
        self,
        handlers: Handlers,
        tokens: Tokens | None,
        *,
        events_tokens: Tokens | None = None,
        pages: Callable[[Request], str] | None = None,
    ) -> None:
        self._handlers = handlers.table
        self._tokens = tokens
        self._events_tokens = events_tokens
        self._pages = pages
        self._refusals = Refusals(log, "rest")
        self._disk_errors = DiskErrors(log, "rest")

    def cached(self, request: Request) -> Response | None:
        return None  # every operation may wait for the node

    def admit(self, request: Request) -> Response | None:
        """Return the refusal that the head alone decides, before the body is read; None to continue."""
        try:
            self._check(request, route(request)[0])
        except RefusedError as refusal:
            return _problem_response(refusal.error, refusal.status, refusal.headers)
        except HeadraceError as error:
            return _problem_response(error)
        return None

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        try:
            operation, path_values = route(request)
            self._check(request, operation)
            query = _query_of(request, operation, path_values)
            body = _body_of(request, operation, pieces)
            response = _response(operation, self._handlers[operation.name](request, query, body))
        except HungUpError:
            raise
        except BadRequestError as error:
            response = self.refuse(error)
        except RefusedError as refusal:
            response = _problem_response(refusal.error, refusal.status, refusal.headers)
        except HeadraceError as error:
            if status_of(error) >= 500:
                log.info("request failed path=%s error=%s", request.path, error)
            response = _problem_response(error)
        except Exception as error:
            answer = self._disk_errors.answered(error, request.path)
            if answer is None:
                log.exception("request failed method=%s path=%s", request.method, request.path)
                why = f"{type(error).__name__}: a defect, see the log"
                answer = HeadraceError("request failed", why=why)
            response = _problem_response(answer)
        return response

    def refuse(self, error: BadRequestError) -> Response:
        status = 431 if error.fault is HttpFault.HEAD_TOO_LARGE else 400
        return _problem_response(UsageError("request", why=error.message), status)

    def marks(self, response: Response) -> list[tuple[str, str]]:
        return []

    def clean(self) -> None:
        pass

    def _check(self, request: Request, operation: Operation) -> None:
        trouble = self._pages(request) if self._pages is not None else ""
        if trouble:
            self._refusals.add(trouble, address=request.address, who=request.certificate)
            raise RefusedError(403, NotAllowedError("request", why=trouble))
        if operation.open:
            return
        if self._tokens is not None:
            scheme, _, token = request.header(TOKEN_HEADER).partition(" ")
            if scheme.lower() != "bearer" or not self._accepts(token.strip(), operation):
                why = "the request has no valid token"
                self._refusals.add(why, address=request.address, who=request.certificate)
                hint = "see events_token" if operation.events else "see rest_token"
                error = NotAllowedError("request", why=why, hint=hint)
                raise RefusedError(401, error, headers=(("WWW-Authenticate", "Bearer"),))
        request.authenticate(request.certificate or ("token" if self._tokens else "anyone"))

    def _accepts(self, token: str, operation: Operation) -> bool:
        if operation.events and self._events_tokens is not None and self._events_tokens.accept(token):
            return True
        return self._tokens is None or self._tokens.accept(token)


# ---------------------------------------------------------------- requests


_EXACT: dict[str, dict[str, Operation]] = {}
for _operation in OPERATIONS:
    if not _operation.path_names:
        _EXACT.setdefault(_operation.path, {})[_operation.method] = _operation
_TEMPLATES = [operation for operation in OPERATIONS if operation.path_names]


def route(request: Request) -> tuple[Operation, dict[str, str]]:
    """Return the operation, and the parameters in the path. PathNotFoundError, which is a 404; RefusedError 405."""
    path = request.path.decode("utf-8", "surrogateescape")
    methods = {method: (operation, dict[str, str]()) for method, operation in _EXACT.get(path, {}).items()}
    if not methods:
        for operation in _TEMPLATES:
            path_values = _match(operation.path, path)
            if path_values is not None:
                methods[operation.method] = operation, path_values
    if not methods:
        raise PathNotFoundError(f"no operation at {path}"[:300], why="see /openapi.json")
    method = "GET" if request.method == "HEAD" else request.method
    if method not in methods:
        allowed = (("Allow", ", ".join(sorted(methods))),)
        raise RefusedError(
            405,
            UsageError(f"{request.method} {path}"[:300], why="the path has no such method"),
            headers=allowed,
        )
    return methods[method]


def _match(template: str, path: str) -> dict[str, str] | None:
    parts, words = path.split("/"), template.split("/")
    if len(parts) != len(words):
        return None
    values = {}
    for part, word in zip(parts, words, strict=True):
        if word.startswith("{") and part:
            values[word[1:-1]] = part
        elif part != word:
            return None
    return values


def _query_of(request: Request, operation: Operation, path_values: dict[str, str]) -> Value:
    names = operation.query.__struct_fields__
    values: dict[str, str] = {}
    for name, value in request.query:
        if name not in names or name in values or name in path_values:
            raise _malformed(f"parameter {name}"[:300], "unknown, or present twice")
        values[name] = value
    try:
        return convert_words({**values, **path_values}, operation.query)
    except msgspec.ValidationError as error:
        raise _malformed("parameters", str(error)) from error


def _body_of(request: Request, operation: Operation, pieces: Iterator[bytes]) -> Value | Iterator[bytes]:
    if operation.body is None:
        return _NO_BODY
    if isinstance(operation.body, str):
        return pieces
    if request.header("content-type").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, UsageError("body", why="its type is not application/json"))
    with read_whole(pieces, BODY_BYTES_MAX) as data:
        try:
            return convert(json.loads(data), operation.body)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise _malformed("body", str(error)[:300]) from error


def _malformed(subject: str, why: str) -> RefusedError:
    return RefusedError(400, UsageError(subject, why=why, hint="see /openapi.json"))


def _path_text(path: str) -> str:
    """Return a path in the form that the node expects."""
    return os.fsdecode(path_of(path))


# ---------------------------------------------------------------- responses


def _response(operation: Operation, result: Value | Response | None) -> Response:
    if isinstance(result, Response):
        return result
    if result is None:
        return Response(operation.status)
    response = _json_response(operation.status, encode(result))
    if operation.name == "startJob":
        response.headers.append(("Location", f"/v1/jobs/{getattr(result, 'id', '')}"))
    return response


def encode(value: Value) -> bytes:
    """Encode a value as JSON. msgspec can't, as it refuses lone surrogates."""
    return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()


def _json_response(status: int, body: bytes) -> Response:
    return Response(status, [("Content-Type", "application/json")], body=body)


def _problem_response(
    error: HeadraceError, status: int | None = None, headers: tuple[tuple[str, str], ...] = ()
) -> Response:
    problem = problem_of(error, status)
    return Response(problem.status, [("Content-Type", MEDIA_TYPE), *headers], body=encode(problem))


def cluster_of(status: dict[str, Any]) -> Cluster:
    cluster = status["cluster"]
    if not cluster:
        return Cluster("", 1, [])
    return Cluster(
        cluster["node"],
        cluster["replicas"],
        [
            ApiMember(row["id"], row["api"], row["zone"], row["capacity_bytes"], row["draining"])
            for row in cluster["members"]
        ],
    )
