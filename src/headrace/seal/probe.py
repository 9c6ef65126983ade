"""Test whether this kernel and these file systems serve a seal, with a small one that is mounted nowhere."""

from __future__ import annotations

import os
import stat
import tempfile

from headrace.base.errors import HeadraceError
from headrace.seal.erofs import ImageEntry
from headrace.seal.mount import open_image, open_view
from headrace.seal.writer import write_image

_BODY = b"the bytes of a cache file\n"
_FILE = "0/probe"


def seal_trouble(volume: str) -> str:
    """Return why no seal of a cache volume can be mounted; "" if one can. Needs root, and blocks for some ms."""
    if os.geteuid() != 0:
        return "only root can mount seals"
    try:
        with tempfile.TemporaryDirectory(prefix=".seal-probe-", dir=volume) as folder:
            return _trouble_in(folder)
    except HeadraceError as error:
        return error.why
    except OSError as error:
        return error.strerror or str(error)


def _trouble_in(folder: str) -> str:
    os.mkdir(f"{folder}/0")
    with open(f"{folder}/{_FILE}", "wb") as file:
        file.write(_BODY)
    entries = [
        ImageEntry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 0, b""),
        ImageEntry(b"file", stat.S_IFREG | 0o444, len(_BODY), 0, 0, 0, f"/{_FILE}".encode()),
    ]
    with open(os.open(f"{folder}/image", os.O_RDWR | os.O_CREAT, 0o600), "r+b") as image:
        digest = write_image(entries, image.fileno())
    descriptors = [os.open(f"{folder}/image", os.O_RDONLY), os.open(folder, os.O_PATH)]
    try:
        descriptors.append(open_image(descriptors[0], digest))
        descriptors.append(open_view(descriptors[2], [descriptors[1]], source="headrace-probe"))
        descriptors.append(os.open("file", os.O_RDONLY, dir_fd=descriptors[3]))
        body = os.read(descriptors[4], len(_BODY) + 1)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return "" if body == _BODY else "a view shows other bytes than the cache file"
