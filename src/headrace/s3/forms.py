"""Parse uploads by a browser's form: multipart/form-data, and the policy that its author signed. No socket.

Sources: "Browser-Based Uploads Using POST (AWS Signature Version 4)" of the Amazon S3 API Reference; RFC 7578. A
client with a form may send only what its policy allows: a condition names each field, all conditions hold, and the
policy has not expired. The size of everything before the file is limited.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator
from datetime import datetime

import msgspec

from headrace.base.decoding import decode_json
from headrace.http.body import GATHER_BYTES
from headrace.s3 import signature
from headrace.s3.body import OBJECT_BYTES_MAX
from headrace.s3.errors import UNKNOWN_KEY, WRONG_SIGNATURE, S3Error

FIELDS_BYTES_MAX = 20 << 10
"""Most bytes of the fields before the file, as in S3, and of the fields after it."""
FIELDS_MAX = 200
HEAD_BYTES_MAX = 4096
_BOUNDARY = re.compile(
    r"multipart/form-data\s*;(?:.*;)?\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))", re.I
)
_NAME = re.compile(r';\s*name="((?:[^"\\\r\n]|\\.)*)"', re.I)
_FILE_NAME = re.compile(r';\s*filename="((?:[^"\\\r\n]|\\.)*)"', re.I)
_UNCHECKED = ("x-amz-signature", "policy", "file")
"""Fields that need no condition. Fields that begin with x-ignore- need none, either."""


class PostPolicy(msgspec.Struct, frozen=True):
    """Holds a decoded policy document."""

    expiration: str
    conditions: list[dict[str, str] | list[str | int]]


class LengthLimits(msgspec.Struct, frozen=True):
    """Holds the least and the most bytes of the file, both allowed."""

    least: int = 0
    most: int = OBJECT_BYTES_MAX


class Form:
    """Parses a form. `fields` has the fields before the file, by name in lower case, in the order sent."""

    def __init__(self, pieces: Iterator[bytes], content_type: str) -> None:
        match = _BOUNDARY.match(content_type)
        if match is None:
            raise _malformed("the body is not multipart/form-data with a boundary")
        self._pieces = pieces
        self._boundary = b"\r\n--" + (match[1] or match[2]).encode("utf-8", "surrogateescape")
        self._buffer = b"\r\n"
        self._received_bytes = 0
        self._is_at_file = False
        self.fields: dict[str, str] = {}
        self.file_name = ""
        self._read_fields()

    def file(self, limits: LengthLimits) -> Iterator[bytes]:
        """Yield the bytes of the file, once. The rest of the form is checked when they have ended. EntityTooSmall,
        EntityTooLarge; MalformedPOSTRequest for a truncated form."""
        size = 0
        for piece in self._to_boundary():
            size += len(piece)
            if size > limits.most:
                raise S3Error("EntityTooLarge", f"the file has more than {limits.most} bytes")
            yield piece
        if size < limits.least:
            raise S3Error("EntityTooSmall", f"the file has {size} bytes, fewer than {limits.least}")
        rest = len(self._buffer)  # fields after the file are ignored
        for piece in self._pieces:
            rest += len(piece)
            if rest > FIELDS_BYTES_MAX:
                raise _malformed("too many bytes follow the file")

    def _read_fields(self) -> None:
        size = 0
        for piece in self._to_boundary():
            raise _malformed(f"{len(piece)} bytes precede the first boundary")
        while True:
            name, file_name = self._head()
            if name == "file":
                self.file_name, self._is_at_file = file_name, True
                return
            parts = []
            for piece in self._to_boundary():
                size += len(piece)
                if size > FIELDS_BYTES_MAX:
                    raise _too_much_before_the_file()
                parts.append(piece)
            if name in self.fields or len(self.fields) >= FIELDS_MAX:
                raise _malformed(f"the field {name[:80]} occurs twice, or there are too many fields")
            self.fields[name] = _text(b"".join(parts))

    def _head(self) -> tuple[str, str]:
        """Return the names of the field and of its file, "" without a file, that begin here."""
        while len(self._buffer) < 2:
            self._read_more()
        if self._buffer.startswith(b"--"):
            raise S3Error("InvalidArgument", "POST requires exactly one file upload per request.")
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                break
            self._read_more()
        if not self._buffer.startswith(b"\r\n") or not 0 <= end <= HEAD_BYTES_MAX:
            raise _malformed("a part of the form has no head, or one that is too long")
        head, self._buffer = _text(self._buffer[2:end]), self._buffer[end + 4 :]
        line = next((row for row in head.split("\r\n") if row.lower().startswith("content-disposition:")), "")
        name, file_name = _NAME.search(line), _FILE_NAME.search(line)
        if name is None or not name[1]:
            raise _malformed("a part of the form has no name")
        return name[1].lower(), file_name[1] if file_name is not None else ""

    def _to_boundary(self) -> Iterator[bytes]:
        """Yield the bytes up to the next boundary, and skip the boundary."""
        kept = len(self._boundary) - 1
        while (end := self._buffer.find(self._boundary)) < 0:
            if len(self._buffer) > kept:
                piece, self._buffer = self._buffer[:-kept], self._buffer[-kept:]
                yield piece
            self._read_more()
        piece, self._buffer = self._buffer[:end], self._buffer[end + len(self._boundary) :]
        if piece:
            yield piece

    def _read_more(self) -> None:
        """Receive the next piece. The server calls with GATHER_BYTES of the body. No thread waits for more before the
        fields have shown who the sender is."""
        if not self._is_at_file and self._received_bytes >= GATHER_BYTES:
            raise _too_much_before_the_file()
        piece = next(self._pieces, b"")
        if not piece:
            raise _malformed("the form ends before its last boundary")
        self._received_bytes += len(piece)
        self._buffer += piece


def check_signature(fields: dict[str, str], secrets: dict[str, str]) -> None:
    """Check that one of these keys signed the policy. Raises AccessDenied, InvalidAccessKeyId or
    SignatureDoesNotMatch."""
    if "policy" not in fields:
        raise S3Error("AccessDenied", "Access Denied: the form has no policy")
    if fields.get("x-amz-algorithm") != signature.ALGORITHM:
        raise S3Error("AccessDenied", f"x-amz-algorithm must be {signature.ALGORITHM}")
    claim = signature.claim_of_form(
        fields.get("x-amz-credential", ""), fields.get("x-amz-signature", ""), fields.get("x-amz-date", "")
    )
    secret = secrets.get(claim.access_key)
    if secret is None:
        raise S3Error("InvalidAccessKeyId", UNKNOWN_KEY)
    key = signature.signing_key(secret, claim.date, claim.region)
    expected = hmac.new(key, fields["policy"].encode("utf-8", "surrogateescape"), "sha256").hexdigest()
    if not hmac.compare_digest(expected.encode(), claim.signature.encode("utf-8", "replace")):
        raise S3Error("SignatureDoesNotMatch", WRONG_SIGNATURE)


def check_policy(fields: dict[str, str], bucket: str, now_s: float) -> LengthLimits:
    """Check the fields against the policy. Raises AccessDenied or InvalidPolicyDocument. Return the limits of the
    file."""
    policy = _policy_of(fields["policy"])
    if now_s >= _seconds(policy.expiration):
        raise S3Error("AccessDenied", "Invalid according to Policy: Policy expired.")
    values, limits, checked = {**fields, "bucket": bucket}, LengthLimits(), set[str]()
    for condition in policy.conditions:
        if isinstance(condition, dict):
            rows: list[tuple[str, str, str]] = [("eq", name, value) for name, value in condition.items()]
        elif condition and str(condition[0]).lower() == "content-length-range":
            limits = _narrowed(limits, condition)
            continue
        else:
            rows = [_row(condition)]
        for kind, name, value in rows:
            name = name.lower()
            checked.add(name)
            if not _holds(kind, name, value, values.get(name)):
                raise S3Error(
                    "AccessDenied",
                    f"Invalid according to Policy: Policy Condition failed: {kind}, {name[:80]}",
                )
    extra = [
        name
        for name in values
        if name not in checked and name not in _UNCHECKED and not name.startswith("x-ignore-")
    ]
    if extra:
        raise S3Error(
            "AccessDenied", f"Invalid according to Policy: Extra input fields: {', '.join(extra)[:200]}"
        )
    return limits


def _policy_of(text: str) -> PostPolicy:
    try:
        return decode_json(base64.b64decode(text, validate=True), PostPolicy)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise _bad_policy(str(error)) from None


def _row(condition: list[str | int]) -> tuple[str, str, str]:
    if len(condition) != 3 or not all(isinstance(word, str) for word in condition):
        raise _bad_policy("a condition has three texts")
    kind, name, value = map(str, condition)
    if kind.lower() not in ("eq", "starts-with") or not name.startswith("$"):
        raise _bad_policy("a condition is eq or starts-with of a $field, or content-length-range")
    return kind.lower(), name[1:], value


def _holds(kind: str, name: str, value: str, actual: str | None) -> bool:
    """Return whether a condition holds. An empty prefix allows any value, and also no field."""
    if kind == "eq":
        return actual == value
    if name == "content-type":  # a list of types, each of which must match
        return all(part.strip().startswith(value) for part in (actual or "").split(","))
    return (actual or "").startswith(value)


def _narrowed(limits: LengthLimits, condition: list[str | int]) -> LengthLimits:
    try:
        least, most = (int(word) for word in condition[1:])
    except ValueError:
        raise _bad_policy("content-length-range has two numbers") from None
    if not 0 <= least <= most:
        raise _bad_policy("content-length-range has two numbers, the smaller one first")
    return LengthLimits(max(limits.least, least), min(limits.most, most))


def _seconds(text: str) -> float:
    try:
        expires = datetime.fromisoformat(text)
    except ValueError:
        expires = None
    if expires is None or expires.tzinfo is None:
        raise _bad_policy("expiration is a time such as 2030-01-01T12:00:00.000Z")
    return expires.timestamp()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _malformed("a field is not UTF-8") from None


def _too_much_before_the_file() -> S3Error:
    return S3Error(
        "MaxPostPreDataLengthExceededError",
        "Your POST request fields preceding the upload file were too large.",
    )


def _malformed(why: str) -> S3Error:
    return S3Error(
        "MalformedPOSTRequest", f"The body of your POST request is not well-formed multipart/form-data: {why}"
    )


def _bad_policy(why: str) -> S3Error:
    return S3Error("InvalidPolicyDocument", f"Invalid Policy: {why[:200]}")
