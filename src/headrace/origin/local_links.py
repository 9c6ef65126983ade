"""Follow the symbolic links of a local directory, but none that leads back to a directory above it.

Such a link would show the directory in itself without an end, and two of them 2^40 times. Calls raise the OSErrors of
the plain calls, and NotADirectoryError for a path through such a link. They block.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from headrace.base.beneath import SafePath


def follow(path: SafePath, top: SafePath, *, last: bool = True) -> SafePath:
    """Return `path.resolved()`, which follows the links in a path. top: the directory that contains all of it."""
    target = path.resolved(last=last)
    if target is not path:
        real_directories(path if last else path.parent, top)
    return target


def real_directories(directory: SafePath, top: SafePath) -> list[bytes]:
    """Return the directories on the way from the top to a directory, both included, as paths without links."""
    real = directory.root.at(top.path)
    above = [real.path]
    for name in filter(None, directory.path[len(top.path.rstrip(b"/")) :].split(b"/")):
        step = real / name
        real = step.resolved()
        if real is not step and leads_back(real.path, above):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory.path)
        above.append(real.path)
    return above


def leads_back(target: bytes, above: Iterable[bytes]) -> bool:
    """Return whether the target of a link is one of the directories above the link, or contains one of them."""
    prefix = target.rstrip(b"/") + b"/"
    return any((directory.rstrip(b"/") + b"/").startswith(prefix) for directory in above)
