"""Capabilities of this process (capabilities(7)). Each call is for the calling thread: before there are others."""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from itertools import count

from headrace.base.libc import c_library, last_errno

_VERSION_3 = 0x20080522
_DUMPABLE, _KEEP_CAPABILITIES, _BOUNDING_DROP, _NO_NEW_PRIVILEGES, _AMBIENT = (
    4,
    8,
    24,
    38,
    47,
)  # linux/prctl.h
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4


class Capability(IntEnum):
    """Those that a process of ours may keep when it stops being root's. linux/capability.h."""

    SYS_ADMIN = 21


NONE: frozenset[Capability] = frozenset()


def limit_to(kept: frozenset[Capability]) -> None:
    """Take all others out of the bounding set, as far as this process may: needs CAP_SETPCAP. What is left there helps
    nobody after `forbid_new_privileges`."""
    for number in count():
        if number in kept:
            continue
        error = _prctl(_BOUNDING_DROP, number)
        if error:
            return  # EINVAL: the kernel has no more of them; EPERM


def survive_change_of_user() -> None:
    """Have setresuid(2) leave the permitted capabilities. `hold` ends that."""
    _check(_prctl(_KEEP_CAPABILITIES, 1))


def hold(kept: frozenset[Capability]) -> None:
    """Have these and no others; none goes over an exec of a user's. OSError where one is not permitted."""
    _check(_prctl(_AMBIENT, _AMBIENT_CLEAR_ALL))
    _check(_prctl(_KEEP_CAPABILITIES, 0))
    _set(kept, NONE)


def pass_on(kept: frozenset[Capability]) -> None:
    """Have these over the next exec, too: of the child of a fork."""
    _set(kept, kept)
    for one in kept:
        _check(_prctl(_AMBIENT, _AMBIENT_RAISE, one))


def forbid_new_privileges() -> None:
    """No exec gives this process, or a child, more than it has: no set-user-id bit counts."""
    _check(_prctl(_NO_NEW_PRIVILEGES, 1))


def hide() -> None:
    """Others of the same user see nothing of this process in /proc, until it executes something."""
    _check(_prctl(_DUMPABLE, 0))


def _set(held: frozenset[Capability], inheritable: frozenset[Capability]) -> None:
    mask, passed = (sum(1 << one for one in chosen) for chosen in (held, inheritable))
    header = struct.pack("@Ii", _VERSION_3, 0)
    low = struct.pack("@III", *(part & 0xFFFFFFFF for part in (mask, mask, passed)))
    high = struct.pack("@III", *(part >> 32 for part in (mask, mask, passed)))
    _check(last_errno() if c_library().capset(header, low + high) else 0)


def _prctl(option: int, second: int, third: int = 0) -> int:
    """The errno; 0 when it went well."""
    import ctypes  # most programs want none of this

    words = (ctypes.c_ulong(one) for one in (second, third, 0, 0))
    return last_errno() if c_library().prctl(option, *words) < 0 else 0


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))
