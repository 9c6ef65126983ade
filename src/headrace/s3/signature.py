"""Verify AWS Signature Version 4, without I/O.

Sources: "Authenticating Requests (AWS Signature Version 4)" of the Amazon S3 API Reference: by the Authorization
header, by query parameters (presigned), and of chunks (`STREAMING-…`), with and without trailers. Any region is
accepted; the service must be s3.
"""

from __future__ import annotations

import calendar
import functools
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from headrace.http.messages import KEPT_CHARACTERS_MAX, Request, is_number
from headrace.s3.errors import S3Error

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_S_MAX = 900
"""Most seconds between the time of a signature and this host's clock."""
EXPIRES_S_MAX = 7 * 86400
"""Longest validity of a presigned URL, in seconds."""
REGION_CHARACTERS_MAX = 64
DATE_CHARACTERS = len("YYYYMMDDThhmmssZ")
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
PAYLOAD_KEYWORDS = (
    UNSIGNED,
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
)
_SAFE = "-_.~"
_SETUP_HINT = (
    f'please use {ALGORITHM}. With boto3: boto3.client("s3", config=Config(signature_version="s3v4")); '
    "with aws: aws configure set default.s3.signature_version s3v4"
)
_PLAIN_PATH = re.compile(rb"[A-Za-z0-9_.~/-]*")


class SignatureFields(msgspec.Struct, frozen=True):
    """Holds the signature of a request, and the fields that it was made of. `expires_s` is None for a request that is
    not presigned."""

    access_key: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    amz_date: str
    expires_s: int | None = None

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/s3/aws4_request"


def claim_of(request: Request) -> SignatureFields | None:
    """Return a request's signature fields; None for an unsigned one. Raises S3Error for a malformed or unknown
    signature."""
    authorization = request.header("authorization")
    if authorization:
        return _of_header(request, authorization)
    if request.has("X-Amz-Algorithm") or request.has("X-Amz-Signature"):
        return _of_query(request)
    if request.has("AWSAccessKeyId"):
        raise S3Error(
            "InvalidRequest", f"a URL presigned by signature version 2 is not understood: {_SETUP_HINT}"
        )
    return None


def _of_header(request: Request, authorization: str) -> SignatureFields:
    kind, _, rest = authorization.partition(" ")
    if kind != ALGORITHM:
        raise S3Error("InvalidRequest", f"{kind or 'nothing'} is not understood: {_SETUP_HINT}")
    parts = {}
    for word in rest.replace(
        ",", " "
    ).split():  # not a regular expression, which took minutes for a long word
        name, _, parts[name] = word.partition("=")
    credential, signed_headers, signature = map(parts.get, ("Credential", "SignedHeaders", "Signature"))
    if not (credential and signed_headers and signature):
        raise S3Error("AuthorizationHeaderMalformed", "Credential, SignedHeaders and Signature are needed")
    amz_date = request.header("x-amz-date") or request.header("date")
    return _claim(credential, signed_headers, signature, amz_date, error_code="AuthorizationHeaderMalformed")


def _of_query(request: Request) -> SignatureFields:
    error_code = "AuthorizationQueryParametersError"
    if request.argument("X-Amz-Algorithm") != ALGORITHM:
        raise S3Error(error_code, f"X-Amz-Algorithm must be {ALGORITHM}")
    expires = request.argument("X-Amz-Expires")
    if not is_number(expires) or not 0 < int(expires) <= EXPIRES_S_MAX:
        raise S3Error(error_code, f"X-Amz-Expires must be 1 to {EXPIRES_S_MAX} seconds")
    return _claim(
        request.argument("X-Amz-Credential"),
        request.argument("X-Amz-SignedHeaders"),
        request.argument("X-Amz-Signature"),
        request.argument("X-Amz-Date"),
        error_code=error_code,
        expires_s=int(expires),
    )


def key_shown(request: Request) -> str:
    """Return the access key that a request names, whether it is well formed or not; "" for none."""
    credential = request.header("authorization").partition("Credential=")[2]
    return (credential or request.argument("X-Amz-Credential")).partition("/")[0]


def claim_of_form(credential: str, signature: str, amz_date: str) -> SignatureFields:
    """Return the signature fields of a browser's form, of which only the policy is signed. Raises S3Error."""
    return _claim(credential, "host", signature, amz_date, error_code="AccessDenied")


def _claim(
    credential: str,
    headers: str,
    signature: str,
    amz_date: str,
    *,
    error_code: str,
    expires_s: int | None = None,
) -> SignatureFields:
    is_kept = len(credential) + len(headers) <= KEPT_CHARACTERS_MAX
    parse = _parsed_scope if is_kept else _parsed_scope.__wrapped__
    access_key, date, region, names = parse(credential, headers, error_code)
    # the length first, as `seconds_of` keeps what it parses, and any client can send it
    is_date = len(amz_date) == DATE_CHARACTERS and seconds_of(amz_date) is not None
    if not is_date or not amz_date.startswith(date):
        raise S3Error("AccessDenied", "x-amz-date must be YYYYMMDDThhmmssZ, of the date of the credential")
    return SignatureFields(access_key, date, region, names, signature, amz_date, expires_s)


@functools.lru_cache(maxsize=1024)
def _parsed_scope(credential: str, headers: str, error_code: str) -> tuple[str, str, str, tuple[str, ...]]:
    """Return access key, date, region and the names of the signed headers. Cached, because a client repeats them."""
    words = credential.rsplit("/", 4)
    is_region = len(words) == 5 and words[2].isascii() and len(words[2]) <= REGION_CHARACTERS_MAX
    if not is_region or words[3:] != ["s3", "aws4_request"]:
        raise S3Error(error_code, "Credential must be ACCESS_KEY/YYYYMMDD/REGION/s3/aws4_request")
    names = tuple(headers.lower().split(";"))
    if "host" not in names:
        raise S3Error(error_code, "host must be among the signed headers")
    if len(set(names)) < len(names):  # the text to sign would have the value of a header thousands of times
        raise S3Error(error_code, "a header is named twice among the signed headers")
    return words[0], words[1], words[2], names


@functools.lru_cache(maxsize=1024)
def seconds_of(amz_date: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(amz_date, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        return None


def check_time(claim: SignatureFields, now_s: float) -> None:
    """Raise S3Error for a signature that has expired, or whose time differs too much from this host's."""
    signed_s = seconds_of(claim.amz_date) or 0
    if claim.expires_s is not None:
        if now_s > signed_s + claim.expires_s:
            raise S3Error("AccessDenied", "Request has expired")
        if now_s < signed_s - SKEW_S_MAX:
            raise S3Error("AccessDenied", "Request is not valid yet")
    elif abs(now_s - signed_s) > SKEW_S_MAX:
        raise S3Error(
            "RequestTimeTooSkewed",
            "The difference between the request time and the server's time is too large.",
        )


def payload_hash_of(request: Request, claim: SignatureFields) -> str:
    """Return the request's x-amz-content-sha256: a hash in hex, UNSIGNED-PAYLOAD or STREAMING-…"""
    text = request.header("x-amz-content-sha256")
    if text in PAYLOAD_KEYWORDS or (len(text) == 64 and not text.strip("0123456789abcdef")):
        return text
    if text.startswith("STREAMING-"):
        raise S3Error("NotImplemented", f"x-amz-content-sha256: {text} is not understood")
    if text:
        raise S3Error(
            "InvalidArgument", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-…, or a SHA-256"
        )
    if claim.expires_s is None:
        raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    return UNSIGNED


def check_headers(request: Request, claim: SignatureFields) -> None:
    """Raise S3Error unless all x-amz-* headers are signed: an intermediary could otherwise add some."""
    unsigned = [
        name for name in request.headers if name.startswith("x-amz-") and name not in claim.signed_headers
    ]
    if claim.expires_s is not None:
        unsigned = [name for name in unsigned if name != "x-amz-content-sha256"]
    if unsigned:
        raise S3Error(
            "AccessDenied", f"There were headers present in the request which were not signed: {unsigned[0]}"
        )


def signature_of(request: Request, claim: SignatureFields, secret: str, payload: str) -> str:
    text = string_to_sign(claim, canonical_request(request, claim, payload))
    return _hex(_signer(secret, claim.date, claim.region), text)


def matches(request: Request, claim: SignatureFields, secret: str, payload: str) -> bool:
    return hmac.compare_digest(
        signature_of(request, claim, secret, payload).encode(), claim.signature.encode("utf-8", "replace")
    )


def canonical_request(request: Request, claim: SignatureFields, payload: str) -> str:
    headers = "".join(
        [f"{name}:{_trimmed(request.headers.get(name, ''))}\n" for name in claim.signed_headers]
    )
    return "\n".join(
        (
            request.method,
            _quoted_path(request.path),
            _canonical_query(request.query, presigned=claim.expires_s is not None),
            headers,
            ";".join(claim.signed_headers),
            payload,
        )
    )


def string_to_sign(claim: SignatureFields, canonical: str) -> str:
    hashed = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{ALGORITHM}\n{claim.amz_date}\n{claim.scope}\n{hashed}"


@functools.lru_cache(maxsize=256)
def signing_key(secret: str, date: str, region: str) -> bytes:
    key = ("AWS4" + secret).encode()
    for word in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    return key


def _canonical_query(query: Iterable[tuple[str, str]], *, presigned: bool) -> str:
    pairs = [
        (_quoted(name), _quoted(value))
        for name, value in query
        if not (presigned and name == "X-Amz-Signature")
    ]
    pairs.sort()
    return "&".join([f"{name}={value}" for name, value in pairs])


def _quoted_path(path: bytes) -> str:
    return path.decode("ascii") if _PLAIN_PATH.fullmatch(path) else quote(path, safe="/" + _SAFE)


def _quoted(text: str) -> str:
    return _kept_quoted(text) if len(text) <= KEPT_CHARACTERS_MAX else _kept_quoted.__wrapped__(text)


@functools.lru_cache(maxsize=4096)
def _kept_quoted(text: str) -> str:
    """Quote a text, with a cache: presigned URLs repeat nearly all of theirs."""
    return quote(text, safe=_SAFE, errors="surrogateescape")


def _trimmed(value: str) -> str:
    return " ".join(value.split()) if "  " in value or "\t" in value else value.strip()


@functools.lru_cache(maxsize=256)
def _signer(secret: str, date: str, region: str) -> hmac.HMAC:
    """Return an HMAC to copy, so that OpenSSL neither looks up the algorithm nor loads the key for each request."""
    return hmac.new(signing_key(secret, date, region), digestmod="sha256")


def _hex(signer: hmac.HMAC, text: str) -> str:
    hmac_copy = signer.copy()
    hmac_copy.update(text.encode("utf-8", "surrogateescape"))
    return hmac_copy.hexdigest()


class ChunkSigner:
    """Verifies the chain of signatures of a body that is signed by chunks. It begins with the request's signature."""

    def __init__(self, claim: SignatureFields, secret: str) -> None:
        self._claim = claim
        self._signer = _signer(secret, claim.date, claim.region)
        self._previous = claim.signature

    def check_chunk(self, signature: str, sha256_hex: str) -> None:
        """Raise S3Error where the signature is not that of this chunk."""
        self._check(signature, f"{ALGORITHM}-PAYLOAD", f"{EMPTY_SHA256}\n{sha256_hex}")

    def check_trailer(self, signature: str, trailers: Mapping[str, str]) -> None:
        """Raise S3Error where the signature is not that of the trailers, in order, without x-amz-trailer-signature."""
        text = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        self._check(signature, f"{ALGORITHM}-TRAILER", hashlib.sha256(text.encode()).hexdigest())

    def _check(self, signature: str, kind: str, hashes: str) -> None:
        text = f"{kind}\n{self._claim.amz_date}\n{self._claim.scope}\n{self._previous}\n{hashes}"
        expected = _hex(self._signer, text)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk of the body does not match.")
        self._previous = expected
