"""The optional packages, the extras that install them, and the error that names the extra of a missing one."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.base.errors import MissingExtraError

EXTRAS_OF: dict[str, tuple[str, ...]] = {
    "aetcd": ("cluster", "lab", "bench"),
    "aiohttp": ("events",),
    "awscrt": ("s3", "webhdfs", "spark", "bench"),
    "botocore": ("events",),
    "cryptography": ("tls", "cluster", "lab", "bench"),
    "defusedxml": ("s3", "bench"),
    "fsspec": ("fsspec", "worlds", "ray", "bench"),
    "google": ("events",),
    "google_crc32c": ("bench",),
    "grpc": ("cluster", "lab", "bench"),
    "httptools": ("s3", "webhdfs", "rest", "spark", "bench"),
    "matplotlib": ("bench",),
    "numpy": ("checkpoint", "torch", "bench"),
    "pynvml": ("diagnose",),
    "torch": ("torch", "bench"),
    "urllib3": ("events",),
    "zstandard": ("checkpoint", "torch", "bench"),
}
"""The imported name → extras of pyproject.toml that install it; the first is the smallest."""


def missing_extra(package: str, needed_by: str, *, extra: str = "") -> MissingExtraError:
    """Return the error to raise. package: of EXTRAS_OF. extra: the one to name, if it has the package."""
    extras = EXTRAS_OF[package]
    named = extra if extra in extras else extras[0]
    return MissingExtraError(
        needed_by, why=f"{package} is not installed", hint=f"pip install 'headrace[{named}]'"
    )


def missing_extra_of(
    error: ModuleNotFoundError, needed_by: str, *, extra: str = ""
) -> MissingExtraError | None:
    """Return the error for a failed import; None if no extra installs the module."""
    package = (error.name or "").partition(".")[0]
    return missing_extra(package, needed_by, extra=extra) if package in EXTRAS_OF else None


def require(packages: Iterable[str], needed_by: str, *, extra: str) -> None:
    """Raise MissingExtraError if one of the packages is not installed. It imports none: some take seconds."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, needed_by, extra=extra)


@contextmanager
def needs_extra(needed_by: str, *, extra: str = "") -> Iterator[None]:
    """Raise MissingExtraError, an ImportError, if an import within the context fails because an extra's package is
    missing."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        missing = missing_extra_of(error, needed_by, extra=extra)
        if missing is None:
            raise
        raise missing from None
