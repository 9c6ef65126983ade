"""AWS's profile files: obstore reads the environment and instance roles, and not these.

~/.aws/credentials and ~/.aws/config, or where AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE point. Static keys,
region, endpoint_url; not sso, not source_profile, not credential_process.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping

from headrace.base.errors import UsageError

_NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}


def _sections(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        raise UsageError(path, why="not a valid AWS profile file") from None  # its text may hold a key
    return parser


def read_profile(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the files say of a profile, by our option names. profile: "" for the default one, which may be absent;
    a named one that is nowhere is a UsageError."""
    name = profile or environment.get("AWS_PROFILE", "") or "default"
    credentials = _sections(environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    config = _sections(environment.get("AWS_CONFIG_FILE", "~/.aws/config"))
    found: dict[str, str] = {}
    known = False
    for parser, section in ((config, f"profile {name}"), (config, name), (credentials, name)):
        if parser.has_section(section):
            known = True
            values = dict(parser.items(section))
            found.update({ours: values[theirs] for theirs, ours in _NAMES.items() if theirs in values})
    if not known and name != "default":
        raise UsageError(f"AWS profile {name}", why="it is in neither ~/.aws/credentials nor ~/.aws/config")
    return found
