"""Find the operation, bucket and key of a request, without I/O.

`/bucket/key` is the path style. Where the Host is `bucket.DOMAIN` it is the virtual-host style: the path is the key.
"""

from __future__ import annotations

import re

import msgspec

from headrace.base.namespace_path import NAME_BYTES_MAX, check_name
from headrace.http.messages import Request
from headrace.s3.errors import S3Error

KEY_BYTES_MAX = 1024
_NO_PATH = re.compile(rb"(?:\A|/)(?:/|\.{1,2}(?:/|\Z))|\0")
"""Matches a slash where a name should begin, a name of dots, and a zero byte."""
_SEAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}@[1-9][0-9]{0,8}")


class S3Call(msgspec.Struct, frozen=True):
    """Holds a routed request. `operation` is one of the tables below, in snake case. `bucket` and `key` may be b"".
    `version` is the seal that the request names, as NAME@VERSION; "": none. `sealed_path` is the path in that seal,
    once it is known."""

    operation: str
    bucket: bytes
    key: bytes
    version: str = ""
    sealed_path: bytes = b""

    @property
    def path(self) -> bytes:
        """Return the path in the namespace, without a key's last slash."""
        if self.sealed_path:
            return self.sealed_path
        return b"/" + self.bucket + (b"/" + self.key.rstrip(b"/") if self.key else b"")


SERVICE = {("GET", ""): "list_buckets"}
BUCKET = {
    ("GET", ""): "list_objects",
    ("GET", "list-type"): "list_objects_v2",
    ("GET", "versions"): "list_versions",
    ("GET", "uploads"): "list_uploads",
    ("GET", "location"): "get_location",
    ("GET", "versioning"): "get_versioning",
    ("HEAD", ""): "head_bucket",
    ("PUT", ""): "create_bucket",
    ("DELETE", ""): "delete_bucket",
    ("POST", "delete"): "delete_objects",
    ("POST", ""): "post_object",
}
OBJECT = {
    ("GET", ""): "get_object",
    ("GET", "uploadId"): "list_parts",
    ("GET", "attributes"): "get_attributes",
    ("HEAD", ""): "head_object",
    ("PUT", ""): "put_object",
    ("PUT", "uploadId"): "put_part",
    ("POST", "uploads"): "create_upload",
    ("POST", "uploadId"): "complete_upload",
    ("DELETE", ""): "delete_object",
    ("DELETE", "uploadId"): "abort_upload",
    ("GET", "tagging"): "get_tagging",
    ("PUT", "tagging"): "put_tagging",
    ("DELETE", "tagging"): "delete_tagging",
}
OF_SEALS = {"get_object", "head_object", "get_attributes", "head_bucket", "list_objects", "list_objects_v2"}
"""Operations that accept the `versionId` of a seal."""
SUBRESOURCES = {
    "accelerate", "acl", "analytics", "attributes", "cors", "delete", "encryption",
    "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "list-type", "location", "logging",
    "metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus",
    "publicAccessBlock", "replication", "requestPayment", "restore", "retention", "select", "tagging",
    "torrent", "uploadId", "uploads", "versioning", "versions", "website",
}  # fmt: skip


def route(request: Request, domains: tuple[str, ...]) -> S3Call:
    """Return the routed request, for virtual hosts of `domains` too. Raises S3Error for an unknown operation or bad
    name."""
    bucket, key = _named(request, domains)
    table = OBJECT if key else BUCKET if bucket else SERVICE
    subresource = ""
    if not SUBRESOURCES.isdisjoint(request.arguments):
        subresource = next(name for name, _ in request.query if name in SUBRESOURCES)
    operation = table.get((request.method, subresource))
    if operation is None:
        if subresource:
            raise S3Error("NotImplemented", f"{request.method} of ?{subresource} is not implemented")
        raise S3Error("MethodNotAllowed", "The specified method is not allowed against this resource.")
    if key:
        check_key(key)
    return S3Call(operation, bucket, key, _version_of(request, operation))


def _version_of(request: Request, operation: str) -> str:
    """Return the seal that `versionId` names; "" for none. Raises S3Error for another version, or a change of a
    seal."""
    version = request.argument("versionId")
    if version in ("", "null"):
        return ""
    if not _SEAL.fullmatch(version):
        raise S3Error("NoSuchVersion", "versions are seals, as NAME@VERSION")
    if operation not in OF_SEALS:
        raise S3Error("MethodNotAllowed", "A sealed version can only be read.")
    return version


def _named(request: Request, domains: tuple[str, ...]) -> tuple[bytes, bytes]:
    host = _without_port(request.header("host").lower())
    for domain in domains:
        if host.endswith("." + domain):
            return checked_bucket(host[: -len(domain) - 1].encode(errors="surrogateescape")), request.path[1:]
    bucket, _, key = request.path[1:].partition(b"/")
    return checked_bucket(bucket) if bucket else bucket, key


def checked_bucket(name: bytes) -> bytes:
    """Return the name of a bucket. Raises S3Error for one that can't be the name of a directory."""
    try:
        check_name(name)
    except ValueError:
        raise S3Error("InvalidBucketName", "The specified bucket is not valid.") from None
    return name


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def check_key(key: bytes) -> None:
    """Raise S3Error for a key that can't be a path of the merged tree."""
    if len(key) > KEY_BYTES_MAX:
        raise S3Error("KeyTooLongError", "Your key is too long")
    if _NO_PATH.search(key):
        raise S3Error(
            "InvalidArgument", "a key with an empty name, `.` or `..` between slashes can't be a path here"
        )
    if len(key) > NAME_BYTES_MAX and any(len(name) > NAME_BYTES_MAX for name in key.split(b"/")):
        raise S3Error("KeyTooLongError", f"a name between slashes has more than {NAME_BYTES_MAX} bytes")
