"""Say which directory is the data set of a job, by the directories of the files that it opens. No I/O."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from headrace.base.namespace_path import is_at_or_below, split

SIBLINGS_MAX = 2
"""Data sets of one job beside each other, such as train and val. With a third one their parent is the data set: the job
walks through its directories, as those of classes."""


def common_directory(directories: Sequence[bytes]) -> bytes:
    """Return the lowest directory that has all of these at or below it. There is at least one."""
    return os.path.commonpath(directories)


def data_set_directory(directories: Sequence[bytes], known: Collection[bytes], top: bytes) -> bytes:
    """Return the directory of the data set that has files in these directories, all at or below `top`.

    known: the data sets of this job. One that contains the directory is it again. A third one beside two others makes
    their parent the data set.
    """
    directory = common_directory(directories)
    for other in known:
        if is_at_or_below(directory, other):
            return other
    parent = split(directory)[0]
    siblings = sum(split(other)[0] == parent for other in known if other != b"/")
    return parent if siblings >= SIBLINGS_MAX and is_at_or_below(parent, top) else directory
