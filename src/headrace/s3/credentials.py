"""Who may sign requests: a file of access keys, as the AWS tools write theirs, read again when it changes.

    [default]
    aws_access_key_id = …
    aws_secret_access_key = …

Each profile is one that may sign. Where no file is named the gateway makes one at its first start, with one key, in the
words of a shell, so that a user of the same name sources it:

    export AWS_ACCESS_KEY_ID=…
    export AWS_SECRET_ACCESS_KEY=…
"""

from __future__ import annotations

import configparser
import re
import secrets

from headrace.base.errors import UsageError
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import create_secret, read_secret

SETTING = "s3_credentials"
FILE_NAME = "s3-credentials"
ACCESS_KEY_BYTES = 8
SECRET_KEY_BYTES = 30
_EXPORT = re.compile(r"^export (AWS_[A-Z_]+)=(\S+)$", re.MULTILINE)
_MADE = """\
# Made by the S3 gateway of Headrace at its first start. Remove it for a new key; name another file by s3_credentials.
export AWS_ACCESS_KEY_ID=HEADRACE{}
export AWS_SECRET_ACCESS_KEY={}
export AWS_REGION=us-east-1
"""


def open_credentials(path: str) -> Reloaded[dict[str, str]]:
    """Secrets by access key. UsageError for a file that can't be used; it names no secret."""
    return Reloaded(
        [path], lambda: parse_credentials(read_secret(path, f"setting {SETTING}"), path), name=SETTING
    )


def make_credentials(path: str) -> None:
    """Make a file with one key, unless it is there. UsageError."""
    create_secret(path, _made)


def _made() -> str:
    secret = secrets.token_urlsafe(SECRET_KEY_BYTES)
    return _MADE.format(secrets.token_hex(ACCESS_KEY_BYTES).upper(), secret)


def parse_credentials(text: str, path: str) -> dict[str, str]:
    """Secrets by access key. path: for messages. UsageError."""
    if exported := dict(_EXPORT.findall(text)):
        return _key(path, "it", exported, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    parser = configparser.RawConfigParser(default_section="-", strict=True)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise _unusable(path, f"not an INI file, {type(error).__name__}") from None
    keys: dict[str, str] = {}
    for profile in parser.sections():
        values = dict(parser[profile])
        keys |= _key(path, f"[{profile}]", values, "aws_access_key_id", "aws_secret_access_key")
    if not keys:
        raise _unusable(path, "it has no profile")
    return keys


def _key(path: str, where: str, values: dict[str, str], access: str, secret: str) -> dict[str, str]:
    if not values.get(access) or not values.get(secret):
        raise _unusable(path, f"{where} needs {access} and {secret}")
    return {values[access]: values[secret]}


def _unusable(path: str, why: str) -> UsageError:
    return UsageError(
        f"setting {SETTING} = {path}", why=why, hint="a file of profiles, like ~/.aws/credentials"
    )
