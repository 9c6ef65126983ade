"""Answer the requests of S3 clients: check who sent them, route them, and encode errors as XML.

`cached` runs in the server's thread, and answers what needs no wait. `answer` may wait for node, disk and body.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from headrace.base.errors import HeadraceError
from headrace.base.refusals import Refusals
from headrace.client.request_stats import UNKNOWN, CountedBody, RequestStats
from headrace.http.disk_errors import DiskErrors
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response, is_number
from headrace.http.sender import sender_refusal
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3 import checksums, signature, xml
from headrace.s3.attributes import AttributesOperation
from headrace.s3.body import OBJECT_BYTES_MAX, Payload, too_large
from headrace.s3.buckets import Buckets
from headrace.s3.errors import UNKNOWN_KEY, WRONG_SIGNATURE, S3Error, s3_error_of, s3_error_of_request
from headrace.s3.multipart import Multipart
from headrace.s3.object_metadata import checked_tags
from headrace.s3.objects import Objects
from headrace.s3.posts import post
from headrace.s3.routes import S3Call, route
from headrace.s3.sealed_versions import at_version
from headrace.s3.signature import ChunkSigner, SignatureFields
from headrace.s3.uploads import Uploads
from headrace.vfs.local_vfs import LocalVfs

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 8 << 20
"""Most bytes of a body that is read whole: a list of keys or of parts."""
_READING = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Access:
    """Describes who may send requests. `secrets` returns the secrets by access key; None allows everyone. `domains` are
    the domains of virtual hosts. `reads_origin_metadata`: metadata of objects is read from origins. `loopback`: the
    gateway listens on loopback only."""

    secrets: Callable[[], dict[str, str]] | None
    domains: tuple[str, ...]
    reads_origin_metadata: bool = True
    loopback: bool = True


class Principal(msgspec.Struct, frozen=True):
    """Identifies who signed a request. `payload_hash` is its x-amz-content-sha256. `claim` is None if it needs no
    signature."""

    payload_hash: str
    claim: SignatureFields | None
    secret: str = ""

    def signer(self) -> ChunkSigner | None:
        if self.claim is None or not self.payload_hash.startswith("STREAMING-AWS4-HMAC-SHA256-PAYLOAD"):
            return None
        return ChunkSigner(self.claim, self.secret)


class AuthenticatedCall(msgspec.Struct, frozen=True):
    """Holds a routed request whose sender is verified. The request carries it, so that each step after the first one
    neither routes nor verifies again."""

    call: S3Call
    principal: Principal


class S3Gateway:
    """Serves the namespace to S3 clients: the first directory of a path is the bucket, the rest is the key."""

    def __init__(self, vfs: LocalVfs, access: Access) -> None:
        self._access = access
        self.objects = Objects(vfs, reads_origin_metadata=access.reads_origin_metadata)
        self.buckets = Buckets(vfs, self.objects)
        uploads = os.fsencode(vfs.client.upper) + b"/uploads"
        self.uploads = Uploads(uploads, DurableWrites(uploads, lambda: vfs.client.local.durable_puts))
        self.attributes = AttributesOperation(self.objects)
        self.parts = Multipart(self.objects, self.uploads)
        self.counts = RequestStats()
        self._refusals = Refusals(log, "s3")
        self._disk_errors = DiskErrors(log, "s3")
        self._ids = itertools.count(secrets.randbits(48))

    def new_id(self) -> str:
        """Return a new request id, for logs."""
        return f"{next(self._ids):016X}"

    def cached(self, request: Request) -> Response | None:
        """Answer a read of cached data, without waiting. None: `answer` must serve the request."""
        if request.method not in _READING:
            return None
        try:
            call = route(request, self._access.domains)
            if call.operation not in ("get_object", "head_object") or call.version:
                return None
            self._check(request, call)
            response = self.objects.get_cached(request, call)
        except (S3Error, HeadraceError):
            return None  # `answer` reports it
        except Exception as error:  # the server's thread must continue; `answer` raises it again
            if not self._disk_errors.includes(error):
                log.exception("request failed method=%s path=%s", request.method, request.path)
            return None
        if response is not None:
            self.counts.add(call.operation, response.status, response.body_bytes)
        return response

    def admit(self, request: Request) -> Response | None:
        """Return the refusal that the head alone decides, before the body is read; None to continue."""
        operation = UNKNOWN
        try:
            call = self._call_of(request)
            operation = call.operation
            self._authenticate(request, call)
            _check_length(request, call)
        except S3Error as error:
            response = self.error(request, error)
            self.counts.add(operation, response.status, response.body_bytes)
            return response
        return None

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """Serve a request. `pieces` yields its body. Raises HungUpError."""
        operation, received = UNKNOWN, CountedBody(pieces)
        try:
            call = self._call_of(request)
            operation = call.operation
            response = self._serve(request, call, received)
        except S3Error as error:
            response = self.error(request, error)
        finally:
            self.counts.received(operation, received.count)
        self.counts.add(operation, response.status, response.body_bytes)
        return response

    def _serve(self, request: Request, call: S3Call, pieces: Iterator[bytes]) -> Response:
        """Serve a routed request, and turn errors into responses. Raises HungUpError."""
        try:
            principal = self._authenticate(request, call)
            if principal is None:
                secrets = None if self._access.secrets is None else self._access.secrets()
                return post(self.objects, secrets, request, call, pieces)
            return self._run(request, call, pieces, principal)
        except S3Error as error:
            return self.error(request, error)
        except BadRequestError as error:
            return self.error(request, s3_error_of_request(error))
        except HeadraceError as error:
            if not error.retryable:
                log.info("request failed path=%s error=%s", request.path, error)
            return self.error(request, s3_error_of(error))
        except HungUpError:
            raise
        except Exception as error:
            if (answer := self._disk_errors.answered(error, request.path)) is not None:
                return self.error(request, s3_error_of(answer))
            log.exception("request failed method=%s path=%s", request.method, request.path)
            return self.error(
                request, S3Error("InternalError", f"{type(error).__name__}: a defect, see the log")
            )

    def refuse(self, error: BadRequestError) -> Response:
        return self.error(None, s3_error_of_request(error))

    def marks(self, response: Response) -> list[tuple[str, str]]:
        return [("x-amz-request-id", response.request_id or self.new_id())]

    def clean(self) -> None:
        self.uploads.remove_idle()

    def error(self, request: Request | None, error: S3Error) -> Response:
        """Return the response that reports an error."""
        has_no_body = error.status == 304 or (request is not None and request.method == "HEAD")
        resource = "" if request is None else request.path.decode("utf-8", "replace")
        id = self.new_id()
        body = b"" if has_no_body else xml.error_document(error.code, error.message, resource, id)
        headers = [("Content-Type", "application/xml")] if body else []
        return Response(error.status, [*headers, *error.headers], body=body, request_id=id)

    def _call_of(self, request: Request) -> S3Call:
        """Return the routed request."""
        authenticated = request.call
        if isinstance(authenticated, AuthenticatedCall):
            return authenticated.call
        return route(request, self._access.domains)

    def _authenticate(self, request: Request, call: S3Call) -> Principal | None:
        """Return the principal; None for a form, whose fields name it. Log a refusal, and raise it as S3Error."""
        if isinstance(request.call, AuthenticatedCall):
            return request.call.principal
        try:
            if call.operation == "post_object":
                self._check_sender(request)
                return None
            return self._check(request, call)
        except S3Error as error:
            self._refusals.add(error.code, address=request.address, who=signature.key_shown(request))
            raise

    def _check(self, request: Request, call: S3Call) -> Principal:
        """Verify who sent a request, and record that in the request. Raises S3Error where access is denied."""
        principal = self._verify(request)
        who = "anyone" if principal.claim is None else principal.claim.access_key
        request.authenticate(who, AuthenticatedCall(call, principal))
        return principal

    def _verify(self, request: Request) -> Principal:
        if self._access.secrets is None:
            self._check_sender(request)
            return Principal(request.header("x-amz-content-sha256"), None)
        claim = signature.claim_of(request)
        if claim is None:
            raise S3Error("AccessDenied", "Access Denied: the request is not signed")
        secret = self._access.secrets().get(claim.access_key)
        if secret is None:
            raise S3Error("InvalidAccessKeyId", UNKNOWN_KEY)
        signature.check_time(claim, time.time())
        signature.check_headers(request, claim)
        payload_hash = signature.payload_hash_of(request, claim)
        if not signature.matches(request, claim, secret, payload_hash):
            raise S3Error("SignatureDoesNotMatch", WRONG_SIGNATURE)
        return Principal(payload_hash, claim, secret)

    def _check_sender(self, request: Request) -> None:
        """Raise S3Error for a request of a web page, where no key is required."""
        if self._access.secrets is not None:
            return
        trouble = sender_refusal(request, self._access.domains, loopback=self._access.loopback)
        if trouble:
            raise S3Error("AccessDenied", f"Access Denied: {trouble}; s3_insecure is set")

    def _run(self, request: Request, call: S3Call, pieces: Iterator[bytes], principal: Principal) -> Response:
        _check_length(request, call)
        if call.version:
            call = at_version(self.objects.vfs, call)
        without_body = _WITHOUT_BODY.get(call.operation)
        if without_body is not None:
            return without_body(self, request, call)
        also = ""
        if call.operation == "put_part" and not _is_copy(request):
            also = self.parts.checksum_request(request, call).algorithm
        # a completion's checksums are those of the object, which was sent before, not those of its body
        own = checksums.without_checksums(request) if call.operation == "complete_upload" else request
        payload = Payload(own, pieces, principal.payload_hash, principal.signer(), also=also)
        try:
            return _WITH_BODY[call.operation](self, request, call, payload)
        finally:
            payload.release()


_WITHOUT_BODY: dict[str, Callable[[S3Gateway, Request, S3Call], Response]] = {
    "list_buckets": lambda gateway, _, __: gateway.buckets.list_all(),
    "list_objects": lambda gateway, request, call: gateway.buckets.objects(request, call),
    "list_objects_v2": lambda gateway, request, call: gateway.buckets.objects_v2(request, call),
    "list_versions": lambda gateway, request, call: gateway.buckets.versions(request, call),
    "list_uploads": lambda gateway, request, call: gateway.parts.list_uploads(request, call),
    "get_location": lambda gateway, _, call: gateway.buckets.location(call),
    "get_versioning": lambda gateway, _, call: gateway.buckets.versioning(call),
    "head_bucket": lambda gateway, _, call: gateway.buckets.head(call),
    "create_bucket": lambda gateway, _, call: gateway.buckets.create(call),
    "delete_bucket": lambda gateway, _, call: gateway.buckets.delete(call),
    "get_object": lambda gateway, request, call: gateway.objects.get(request, call),
    "head_object": lambda gateway, request, call: gateway.objects.get(request, call),
    "get_attributes": lambda gateway, request, call: gateway.attributes.get(request, call),
    "delete_object": lambda gateway, request, call: gateway.objects.delete(request, call),
    "get_tagging": lambda gateway, _, call: gateway.objects.tags(call),
    "delete_tagging": lambda gateway, _, call: gateway.objects.set_tags(call, {}, status=204),
    "list_parts": lambda gateway, request, call: gateway.parts.list_parts(request, call),
    "create_upload": lambda gateway, request, call: gateway.parts.create(request, call),
    "abort_upload": lambda gateway, request, call: gateway.parts.abort(request, call),
}
_WITH_BODY: dict[str, Callable[[S3Gateway, Request, S3Call, Payload], Response]] = {
    "delete_objects": lambda gateway, _, call, payload: gateway.buckets.delete_objects(
        call, payload.read_all(BODY_BYTES_MAX)
    ),
    "put_object": lambda gateway, request, call, payload: (
        gateway.objects.copy(request, call)
        if _is_copy(request)
        else gateway.objects.put(request, call, payload)
    ),
    "put_tagging": lambda gateway, _, call, payload: gateway.objects.set_tags(
        call, checked_tags(xml.read_tags(payload.read_all(BODY_BYTES_MAX))), status=200
    ),
    "put_part": lambda gateway, request, call, payload: (
        gateway.parts.copy_part(request, call)
        if _is_copy(request)
        else gateway.parts.put_part(request, call, payload)
    ),
    "complete_upload": lambda gateway, request, call, payload: gateway.parts.complete(
        request, call, payload.read_all(BODY_BYTES_MAX)
    ),
}


def _is_copy(request: Request) -> bool:
    return "x-amz-copy-source" in request.headers


def _check_length(request: Request, call: S3Call) -> None:
    """Check the length that a request declares. A put without a length that is not chunked either would be an empty
    object. A put that is too long is refused before its bytes arrive. A form must declare its length, as browsers do:
    its sender is not known yet, and no thread may wait for it."""
    if call.operation == "post_object" and "content-length" not in request.headers:
        raise _no_length()
    if call.operation not in ("put_object", "put_part") or _is_copy(request):
        return
    length = request.header("x-amz-decoded-content-length") or request.header("content-length")
    if not length and "transfer-encoding" not in request.headers:
        raise _no_length()
    if is_number(length) and int(length) > OBJECT_BYTES_MAX:
        raise too_large()


def _no_length() -> S3Error:
    return S3Error("MissingContentLength", "You must provide the Content-Length HTTP header.")
