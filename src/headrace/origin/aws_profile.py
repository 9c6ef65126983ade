"""Read AWS's profile files: obstore reads the environment and instance roles, but not these files.

The files are ~/.aws/credentials and ~/.aws/config, or those that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE
name. Supported are static keys, region and endpoint_url; not sso, source_profile and credential_process.
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
        raise UsageError(
            path, why="not a valid AWS profile file"
        ) from None  # the original error may quote a key
    return parser


def read_profile(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return a profile's values by Headrace's option names. "" selects the default profile, which may be absent.
    Raise UsageError if a named profile does not exist."""
    name = profile or environment.get("AWS_PROFILE", "") or "default"
    credentials = _sections(environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
    config = _sections(environment.get("AWS_CONFIG_FILE", "~/.aws/config"))
    options: dict[str, str] = {}
    exists = False
    for parser, section in ((config, f"profile {name}"), (config, name), (credentials, name)):
        if parser.has_section(section):
            exists = True
            values = dict(parser.items(section))
            options.update({ours: values[theirs] for theirs, ours in _NAMES.items() if theirs in values})
    if not exists and name != "default":
        raise UsageError(
            f"AWS profile {name}", why="neither ~/.aws/credentials nor ~/.aws/config has this profile"
        )
    return options
