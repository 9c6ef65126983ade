"""Define the error answers of the REST API (RFC 9457), and the only table HeadraceError → HTTP status.

`STATUS` has a row for every HeadraceError; a test fails if one is missing.
"""

from __future__ import annotations

from http import HTTPStatus

from headrace.base.errors import HeadraceError
from headrace.wire.api import Problem

MEDIA_TYPE = "application/problem+json"

STATUS: dict[str, int] = {
    "internal": 500,
    "usage": 422,  # 400 is for requests that are invalid on any node
    "policy.conflict": 409,
    "path.not_found": 404,
    "path.not_a_directory": 409,
    "path.is_a_directory": 409,
    "path.exists": 409,
    "path.read_only": 403,
    "path.not_empty": 409,
    "path.stale": 503,
    "not_supported": 422,
    "path.denied": 403,
    "extra.missing": 500,
    "origin.failed": 502,
    "origin.unavailable": 503,
    "origin.denied": 502,
    "origin.no_bucket": 502,
    "origin.version_changed": 412,
    "origin.conflict": 409,
    "origin.read_only": 403,
    "origin.budget_spent": 503,
    "origin.corrupt": 502,
    "deadline": 504,
    "store.no_space": 507,
    "store.failed": 503,
    "store.busy": 503,
    "store.corrupt_index": 503,
    "store.corrupt_block": 503,
    "store.evicted": 503,
    "store.in_use": 503,
    "node.unavailable": 503,
    "node.denied": 401,
    "protocol": 502,
    "cluster.unavailable": 503,
    "cluster.denied": 503,
    "cluster.id_taken": 500,
    "peer.failed": 502,
    "peer.not_owner": 502,
    "mount.failed": 500,
    # errors of checkpoints, which no request raises
    "checkpoint.not_found": 404,
    "checkpoint.corrupt": 500,
    "checkpoint.failed": 500,
    "checkpoint.no_space": 507,
    "checkpoint.mismatch": 409,
    "seal.invalid_image": 500,
    "cancelled": 409,
}


class RefusedError(Exception):
    """Reports an error for which HTTP has a status and HeadraceError has no code. `error` is the nearest
    HeadraceError. `headers` are added to the response."""

    def __init__(
        self, status: int, error: HeadraceError, *, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers


def status_of(error: HeadraceError) -> int:
    return STATUS.get(error.code, 500)


def problem_of(error: HeadraceError, status: int | None = None) -> Problem:
    """Return the problem details. `status` replaces the status of the table."""
    http_status = status_of(error) if status is None else status
    return Problem(
        type=f"urn:headrace:error:{error.code}",
        title=HTTPStatus(http_status).phrase,
        status=http_status,
        detail=str(error),
        code=error.code,
        what=error.what,
        why=error.why,
        hint=error.hint,
        retryable=error.retryable,
    )
