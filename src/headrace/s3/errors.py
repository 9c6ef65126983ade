"""Define the gateway's error answers: S3's codes, and the only table HeadraceError → S3 code.

`ERROR_MAP` has a row for every HeadraceError; a test fails if one is missing.
"""

from __future__ import annotations

from headrace.base.errors import HeadraceError
from headrace.http.errors import BadRequestError, HttpFault

STATUS: dict[str, int] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidPolicyDocument": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidStorageClass": 400,
    "InvalidTag": 400,
    "KeyTooLongError": 400,
    "MalformedPOSTRequest": 400,
    "MalformedXML": 400,
    "MaxPostPreDataLengthExceededError": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "PreconditionFailed": 412,
    "RequestHeaderSectionTooLarge": 400,
    "RequestTimeTooSkewed": 403,
    "ServiceUnavailable": 503,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
    # Not S3's own: a directory can't be an object too.
    "KeyIsAFolder": 409,
    "ParentIsAnObject": 409,
}

ERROR_MAP: dict[str, str] = {
    "internal": "InternalError",
    "usage": "InvalidArgument",
    "policy.conflict": "ConditionalRequestConflict",  # of commands
    "path.not_found": "NoSuchKey",
    "path.stale": "ServiceUnavailable",
    "path.not_a_directory": "ParentIsAnObject",
    "path.is_a_directory": "KeyIsAFolder",
    "path.exists": "PreconditionFailed",
    "path.not_empty": "BucketNotEmpty",
    "path.read_only": "AccessDenied",
    "not_supported": "NotImplemented",
    "path.denied": "AccessDenied",
    "extra.missing": "NotImplemented",
    "origin.failed": "InternalError",
    "origin.unavailable": "ServiceUnavailable",
    "origin.denied": "AccessDenied",
    "origin.no_bucket": "NoSuchBucket",
    "origin.version_changed": "ServiceUnavailable",
    "origin.conflict": "ConditionalRequestConflict",
    "origin.corrupt": "InternalError",
    "origin.read_only": "AccessDenied",
    "origin.budget_spent": "ServiceUnavailable",
    "deadline": "ServiceUnavailable",
    "store.no_space": "ServiceUnavailable",
    "store.failed": "ServiceUnavailable",
    "store.evicted": "ServiceUnavailable",
    "store.busy": "ServiceUnavailable",
    "store.in_use": "ServiceUnavailable",
    "store.corrupt_index": "ServiceUnavailable",
    "store.corrupt_block": "ServiceUnavailable",
    "node.unavailable": "ServiceUnavailable",
    "node.denied": "AccessDenied",
    "protocol": "InternalError",
    "mount.failed": "InternalError",
    "cluster.unavailable": "ServiceUnavailable",
    "cluster.denied": "ServiceUnavailable",
    "cluster.id_taken": "InternalError",
    "peer.failed": "ServiceUnavailable",
    "peer.not_owner": "ServiceUnavailable",
    # errors of checkpoints, which no request raises
    "checkpoint.not_found": "NoSuchKey",
    "checkpoint.corrupt": "InternalError",
    "checkpoint.mismatch": "InvalidArgument",
    "checkpoint.no_space": "ServiceUnavailable",
    "checkpoint.failed": "InternalError",
    "seal.invalid_image": "InternalError",
    "cancelled": "ServiceUnavailable",
}

FAULT_MAP: dict[HttpFault, str] = {
    HttpFault.NO_REQUEST: "InvalidRequest",
    HttpFault.HEAD_TOO_LARGE: "RequestHeaderSectionTooLarge",
    HttpFault.BODY_CUT_SHORT: "IncompleteBody",
}


UNKNOWN_KEY = "The AWS Access Key Id you provided does not exist in our records."
WRONG_SIGNATURE = "The request signature we calculated does not match the signature you provided."


class S3Error(Exception):
    """Reports a failed request to the client. `code` is one of STATUS. `headers` are added to the response."""

    def __init__(self, code: str, message: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers

    @property
    def status(self) -> int:
        return STATUS[self.code]


def s3_error_of(error: HeadraceError) -> S3Error:
    """Return the S3 error. It names no path of this host: HeadraceErrors name paths of the namespace and URLs."""
    return S3Error(ERROR_MAP.get(error.code, "InternalError"), str(error))


def s3_error_of_request(error: BadRequestError) -> S3Error:
    return S3Error(FAULT_MAP[error.fault], error.message)
