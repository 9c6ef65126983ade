"""Raise this process's limit of open files."""

from __future__ import annotations


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the maximum that this process may set."""
    import resource  # not before: most programs that import this package never need it

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
