"""Maps the code of an error to the exit status of the command line. docs/errors.md is made from it."""

from __future__ import annotations

import errno
import os

from headrace.base.errors import HeadraceError

SOME_FAILED = 50
"""Exit status if a job ended and some files failed."""
NOT_FOUND, NOT_RUN = 127, 126
"""Statuses of a shell for a program that does not exist, or can't be executed."""

EXIT_CODES: dict[str, int] = {
    "internal": 1,
    "usage": 2,
    "path.not_found": 3,
    "path.not_a_directory": 4,
    "path.is_a_directory": 5,
    "path.exists": 6,
    "path.read_only": 7,
    "not_supported": 8,
    "path.stale": 9,
    "extra.missing": 27,
    "path.denied": 26,
    "origin.failed": 10,
    "origin.unavailable": 11,
    "origin.denied": 12,
    "origin.no_bucket": 13,
    "origin.version_changed": 14,
    "deadline": 15,
    "origin.conflict": 16,
    "origin.read_only": 17,
    "origin.budget_spent": 28,
    "path.not_empty": 18,
    "origin.corrupt": 19,
    "store.no_space": 20,
    "store.failed": 21,
    "store.busy": 22,
    "store.corrupt_index": 23,
    "store.corrupt_block": 24,
    "store.evicted": 25,
    "store.in_use": 29,
    "node.unavailable": 30,
    "protocol": 31,
    "cluster.unavailable": 32,
    "cluster.id_taken": 33,
    "peer.failed": 34,
    "peer.not_owner": 35,
    "node.denied": 36,
    "cluster.denied": 37,
    "policy.conflict": 38,
    "mount.failed": 40,
    "seal.invalid_image": 41,
    "checkpoint.not_found": 60,
    "checkpoint.corrupt": 61,
    "checkpoint.failed": 62,
    "checkpoint.no_space": 63,
    "checkpoint.mismatch": 64,
    "cancelled": 130,
}


def exit_code_of(error: HeadraceError) -> int:
    return EXIT_CODES.get(error.code, 1)


def not_started_status(error: OSError) -> int:
    """Return the exit status for a program of the user that could not be started, as a shell would."""
    return NOT_FOUND if error.errno == errno.ENOENT else NOT_RUN


def why_not_started(error: OSError, program: str) -> str:
    """Return why a program of the user could not be started, and what to do where that is known."""
    import shutil  # takes some milliseconds

    path = program if "/" in program else shutil.which(program, os.F_OK)
    if error.errno == errno.ENOENT and (path is None or not os.path.exists(path)):
        return _missing(program)
    if error.errno == errno.ENOENT:
        return "the interpreter that its first line names is missing"
    if error.errno == errno.EACCES and os.path.isdir(path or program):
        return "the path is a directory"
    if error.errno == errno.EACCES:
        return "the file is not executable (chmod +x, or name its interpreter: python FILE)"
    if error.errno == errno.ENOEXEC:
        return "the file is no program (name its interpreter: python FILE)"
    return (error.strerror or str(error)).lower()


def _missing(program: str) -> str:
    if "/" in program:
        return "no such program"
    is_here = os.path.isfile(program)
    return "no such program on PATH" + (f" (for the file in this directory: ./{program})" if is_here else "")
