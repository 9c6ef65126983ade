"""The optional packages, the extras that bring them, and the error that names the extra where one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headrace.base.errors import MissingExtraError

EXTRAS_OF: dict[str, tuple[str, ...]] = {
    "aetcd": ("cluster", "lab", "bench"),
    "awscrt": ("s3", "webhdfs", "spark", "bench"),
    "cryptography": ("tls", "cluster", "lab", "bench"),
    "defusedxml": ("s3", "bench"),
    "fsspec": ("fsspec", "worlds", "ray", "bench"),
    "google_crc32c": ("bench",),
    "grpc": ("cluster", "lab", "bench"),
    "httptools": ("s3", "webhdfs", "rest", "spark", "bench"),
    "matplotlib": ("bench",),
    "numpy": ("checkpoint", "torch", "bench"),
    "pynvml": ("diagnose",),
    "torch": ("torch", "bench"),
    "zstandard": ("checkpoint", "torch", "bench"),
}
"""The name that is imported → extras of pyproject.toml that bring it; the first is the smallest one."""


def missing_extra(package: str, needed_by: str, *, extra: str = "") -> MissingExtraError:
    """Return the error to raise. package: of EXTRAS_OF. extra: to name, if it has the package."""
    extras = EXTRAS_OF[package]
    named = extra if extra in extras else extras[0]
    return MissingExtraError(
        needed_by, why=f"{package} is not installed", hint=f"pip install 'headrace[{named}]'"
    )


def missing_extra_of(
    error: ModuleNotFoundError, needed_by: str, *, extra: str = ""
) -> MissingExtraError | None:
    """Return what a failed import means; None where the module is not one that an extra brings."""
    package = (error.name or "").partition(".")[0]
    return missing_extra(package, needed_by, extra=extra) if package in EXTRAS_OF else None


def require(packages: Iterable[str], needed_by: str, *, extra: str) -> None:
    """Raise MissingExtraError where one of them is not installed. Imports none: some take seconds."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise missing_extra(package, needed_by, extra=extra)


@contextmanager
def needs_extra(needed_by: str, *, extra: str = "") -> Iterator[None]:
    """Imports within it raise MissingExtraError, an ImportError, where a package of an extra is missing."""
    try:
        yield
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        missing = missing_extra_of(error, needed_by, extra=extra)
        if missing is None:
            raise
        raise missing from None
