"""What is wrong with what a client sent, before anybody knows what it asked for."""

from __future__ import annotations

from enum import StrEnum


class HttpFault(StrEnum):
    NO_REQUEST = "no_request"
    HEAD_TOO_LARGE = "head_too_large"
    BODY_CUT_SHORT = "body_cut_short"


class BadRequestError(Exception):
    """Each application tells of it in its own words; where a head is bad, the connection is of no more use."""

    def __init__(self, fault: HttpFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


class HungUpError(Exception):
    """The client is gone, or has done nothing for too long: there is nobody to answer."""
