"""Define the errors of a client, and of its connection, that are detected before its request is parsed."""

from __future__ import annotations

from enum import StrEnum


class HttpFault(StrEnum):
    """Names the kinds of errors."""

    NO_REQUEST = "no_request"
    HEAD_TOO_LARGE = "head_too_large"
    BODY_CUT_SHORT = "body_cut_short"


class BadRequestError(Exception):
    """The client sent no valid request. Each application answers in its own format; after a bad head the connection
    is closed."""

    def __init__(self, fault: HttpFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


class HungUpError(Exception):
    """The client disconnected, or was inactive for too long: no answer can be sent."""


class ClientLeftError(HungUpError):
    """The client disconnected before the end of the TLS handshake, as the health checks of load balancers do."""
