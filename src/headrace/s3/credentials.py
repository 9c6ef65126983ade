"""Read the access keys whose owners may sign requests, and read them again when the file changes.

    [default]
    aws_access_key_id = …
    aws_secret_access_key = …

The AWS tools write this format; each profile is one key. Without a configured file the gateway creates one with one
key at its first start, in shell syntax, so that a user of the same name can source it:

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
"""Name of the file that the gateway creates."""
ACCESS_KEY_BYTES = 8
SECRET_KEY_BYTES = 30
_EXPORT = re.compile(r"^export (AWS_[A-Z_]+)=(\S+)$", re.MULTILINE)
_TEMPLATE = """\
# Created by the S3 gateway of Headrace at its first start. Delete it for a new key; s3_credentials names another file.
export AWS_ACCESS_KEY_ID=HEADRACE{}
export AWS_SECRET_ACCESS_KEY={}
export AWS_REGION=us-east-1
"""


def open_credentials(path: str) -> Reloaded[dict[str, str]]:
    """Return the secrets by access key, reloaded when the file changes. Raises UsageError, which names no secret."""
    return Reloaded(
        [path], lambda: parse_credentials(read_secret(path, f"setting {SETTING}"), path), name=SETTING
    )


def make_credentials(path: str) -> None:
    """Create a file with one key, unless it exists. Raises UsageError."""
    create_secret(path, _new_credentials)


def _new_credentials() -> str:
    secret = secrets.token_urlsafe(SECRET_KEY_BYTES)
    return _TEMPLATE.format(secrets.token_hex(ACCESS_KEY_BYTES).upper(), secret)


def parse_credentials(text: str, path: str) -> dict[str, str]:
    """Return the secrets by access key. `path` is for messages. Raises UsageError."""
    if exported := dict(_EXPORT.findall(text)):
        return _key(path, "the file", exported, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
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
        raise _unusable(path, "the file has no profile")
    return keys


def _key(path: str, where: str, values: dict[str, str], access: str, secret: str) -> dict[str, str]:
    if not values.get(access) or not values.get(secret):
        raise _unusable(path, f"{where} needs {access} and {secret}")
    return {values[access]: values[secret]}


def _unusable(path: str, why: str) -> UsageError:
    return UsageError(
        f"setting {SETTING} = {path}", why=why, hint="name a file of profiles, like ~/.aws/credentials"
    )
