"""Who may sign requests: a file of access keys, as the AWS tools write theirs.

    [default]
    aws_access_key_id = …
    aws_secret_access_key = …

Each profile is one that may sign.
"""

from __future__ import annotations

import configparser

from headrace.base.errors import UsageError


def read_credentials(path: str) -> dict[str, str]:
    """Secrets by access key. UsageError for a file that can't be used; it names no secret."""
    found = configparser.RawConfigParser(default_section="-", strict=True)
    try:
        with open(path) as source:
            found.read_file(source)
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except (configparser.Error, UnicodeDecodeError) as error:
        raise _unusable(path, f"not an INI file, {type(error).__name__}") from None
    keys = {}
    for profile in found.sections():
        access = found.get(profile, "aws_access_key_id", fallback="")
        secret = found.get(profile, "aws_secret_access_key", fallback="")
        if not access or not secret:
            raise _unusable(path, f"[{profile}] needs aws_access_key_id and aws_secret_access_key")
        keys[access] = secret
    if not keys:
        raise _unusable(path, "it has no profile")
    return keys


def _unusable(path: str, why: str) -> UsageError:
    return UsageError(
        f"setting s3_credentials = {path}", why=why, hint="a file of profiles, like ~/.aws/credentials"
    )
