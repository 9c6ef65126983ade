"""Keep the state of a lab in a file, so that later commands find it, also after a crash of the process that made
it."""

from __future__ import annotations

import os

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import HeadraceError, StoreError

NAME = "lab.json"


class LabState(msgspec.Struct, kw_only=True):
    """The state of a lab. `nodes` are numbers from 1, including killed nodes. `rate_bits_s` is 0 for unshaped links.
    `made_folder`: the lab made `folder`, and removes it. `origin_options` may hold the secrets of a test's object
    store, so only the owner may read the file."""

    folder: str
    network: str
    rate_bits_s: int = 0
    cache_bytes: int = 0
    zones: int = 0
    origin: str = ""
    origin_options: dict[str, str] = {}
    cluster: str = ""
    settings: dict[str, str] = {}
    nodes: list[int] = []
    cuts: dict[int, str] = {}
    made_folder: bool = False
    why_loopback: str = ""


def write(path: str, state: LabState) -> None:
    """Replace the file atomically. Raise StoreError."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as out:
            out.write(msgspec.json.encode(state) + b"\n")
        os.rename(path + ".new", path)
    except OSError as error:
        raise StoreError(f"state of the lab {path}", why=error.strerror or str(error)) from error


def read(path: str) -> LabState | None:
    """Return the state; None if there is no lab. Raise HeadraceError for a file of another version."""
    try:
        with open(path, "rb") as source:
            return decode_json(source.read(), LabState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise HeadraceError(
            f"state of the lab {path}", why=str(error), hint="the file may be of another version of headrace"
        ) from error


def remove(path: str) -> None:
    for name in (path, path + ".new"):
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
