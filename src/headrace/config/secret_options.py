"""Keep secrets out of the options of an origin on command lines, which every user of the host can read while the
command runs. A secret is in a file instead: `NAME=@FILE`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from headrace.base.errors import UsageError
from headrace.base.secret_file import read_secret
from headrace.config.schema import PUBLIC_OPTIONS, is_secret

NAMES_OF_KEYS = ("access_key_id", "account_name", "username", "user")
"""Options that identify the requester. They are no secret: every log of an object store has them."""
_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")


def resolve_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with the contents of files in place of `@FILE`. Raises UsageError."""
    return {name: _resolved(name, value) for name, value in options.items()}


def without_passwords(text: str) -> str:
    """Return a text with *** in place of the passwords of URLs."""
    return _PASSWORD.sub(r"\1***@", text)


def option_of_command(name: str, value: str) -> str:
    """Return the value of `-o NAME=VALUE`. Raises UsageError for a literal secret, whose message does not repeat it."""
    if _PASSWORD.search(value):
        raise UsageError(
            f"-o {name}", why="it holds a password, which other users can read", hint=_hint(name)
        )
    literal = not value.startswith("@")
    if literal and is_secret(name) and name not in PUBLIC_OPTIONS and name not in NAMES_OF_KEYS:
        why = "it is a secret, and other users can read a command's arguments"
        raise UsageError(f"-o {name}", why=why, hint=_hint(name))
    return _resolved(name, value)


def literal_secret(mounts: object) -> str:
    """Return the name of a secret that is literal in a table of mounts from a configuration file; "" for none."""
    for path, mount in mounts.items() if isinstance(mounts, dict) else ():
        table = mount if isinstance(mount, dict) else {}
        if _PASSWORD.search(str(table.get("url", ""))):
            return f"mounts.{path}.url"
        options = table.get("options")
        for name, value in options.items() if isinstance(options, dict) else ():
            literal = is_secret(name) and name not in PUBLIC_OPTIONS and name not in NAMES_OF_KEYS
            if _PASSWORD.search(str(value)) or (literal and not str(value).startswith("@")):
                return f"mounts.{path}.options.{name}"
    return ""


def option_words(options: Mapping[str, str], directory: str) -> list[str]:
    """Return options as arguments of a command. Secrets are written to files in the directory, and the arguments name
    those."""
    arguments = []
    for name, value in options.items():
        if is_secret(name) and name not in NAMES_OF_KEYS:
            path = os.path.join(directory, f"option-{name}")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8") as out:
                out.write(value)
            value = f"@{path}"
        arguments += ["-o", f"{name}={value}"]
    return arguments


def _resolved(name: str, value: str) -> str:
    if not value.startswith("@"):
        return value
    return read_secret(os.path.expanduser(value[1:]), f"option {name}").strip()


def _hint(name: str) -> str:
    return f"put it into a file of mode 0600 and write -o {name}=@FILE, or use the environment or the configuration"
