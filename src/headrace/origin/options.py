"""Parse and check the options of an origin beside its URL. Values stay out of messages, because they may be
secret."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from headrace.base.errors import UsageError
from headrace.origin.throttle import OriginLimits

TIMEOUT_S = 60.0
_ENDPOINT = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")
_NAME = re.compile(r"[A-Za-z0-9._-]*")
"""Matches parts of a host's name: other characters could send a request to another host."""
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True, slots=True, repr=False)
class OriginOptions:
    """Holds the options of an origin. An empty string or None means not set."""

    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    anonymous: bool = False
    profile: str = ""
    allow_http: bool = False
    path_style: bool | None = None
    put_checksums: bool | None = None
    unsafe_links: bool = False
    account_name: str = ""
    account_key: str = ""
    service_account_path: str = ""
    token: str = ""
    request_limit_per_s: float = 0.0
    bytes_limit_per_s: float = 0.0
    concurrency_max: int = 0
    timeout_s: float = TIMEOUT_S
    verify: str = ""
    events: str = ""
    certificates: str = ""

    def limits(self) -> OriginLimits:
        return OriginLimits(self.request_limit_per_s, self.bytes_limit_per_s, self.concurrency_max)


NAMES = tuple(field.name for field in fields(OriginOptions))
_NUMBERS = ("request_limit_per_s", "bytes_limit_per_s", "concurrency_max", "timeout_s")
COMMON = (*_NUMBERS, "verify")
VERIFY_OPEN = "open"
OPTION_EVENTS = "events"

STEERING: dict[str, tuple[str, ...]] = {
    "s3": ("endpoint", "profile", OPTION_EVENTS),
    "gs": ("endpoint", "service_account_path", OPTION_EVENTS),
    "az": ("endpoint", "account_name", OPTION_EVENTS),
    "http": ("endpoint",),
    "https": ("endpoint",),
}
"""Options that select where requests go, or which of this host's credentials they use. In other schemes every option
may."""


def parse_options(url: str, options: dict[str, str]) -> OriginOptions:
    """Return the options. Raise UsageError for an unknown name or an invalid value."""
    values: dict[str, str | bool | float | int] = {}
    for name, text in options.items():
        if name not in NAMES:
            raise UsageError(
                url, why=f"unknown option {name!r}", hint=f"valid options are {', '.join(NAMES)}"
            )
        values[name] = _value(url, name, text)
    return OriginOptions(**values)  # type: ignore[arg-type]


def split_common(url: str, options: dict[str, str]) -> tuple[OriginOptions, dict[str, str]]:
    """Return the limits, which every origin has, and the remaining options for a driver with names of its own."""
    common = {name: text for name, text in options.items() if name in COMMON}
    rest = {name: text for name, text in options.items() if name not in COMMON}
    return parse_options(url, common), rest


def verifies_opens(options: dict[str, str]) -> bool:
    """Return whether cached files of such a mount are compared with their checksums before their first open."""
    return options.get("verify") == VERIFY_OPEN


def _value(url: str, name: str, text: str) -> str | bool | float | int:
    if name in ("anonymous", "allow_http", "path_style", "put_checksums", "unsafe_links"):
        if text.lower() not in _TRUE + _FALSE:
            raise UsageError(url, why=f"option {name} must be true or false")
        return text.lower() in _TRUE
    if name == "endpoint" and text and not _ENDPOINT.fullmatch(text):
        raise UsageError(url, why="option endpoint must be a URL like https://host:port, without a password")
    if name == "verify" and text not in ("", "off", VERIFY_OPEN):
        raise UsageError(url, why=f"option verify must be off or {VERIFY_OPEN}")
    if name in ("region", "account_name") and not _NAME.fullmatch(text):
        raise UsageError(url, why=f"option {name} must consist of letters, digits and ._-")
    if name not in _NUMBERS:
        return text
    try:
        number = float(text)
        if not 0 <= number < float("inf"):
            raise ValueError
    except ValueError:
        raise UsageError(url, why=f"option {name} must be a number, 0 or more") from None
    return int(number) if name == "concurrency_max" else number
