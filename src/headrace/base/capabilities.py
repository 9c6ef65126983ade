"""Change the capabilities of this process (capabilities(7)). Each call affects the calling thread only, so call it
before other threads start."""

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
    """Capabilities that a process may keep when it stops being root's. linux/capability.h."""

    SYS_ADMIN = 21


NONE: frozenset[Capability] = frozenset()


def limit_to(kept: frozenset[Capability]) -> None:
    """Remove all other capabilities from the bounding set, as far as this process may: that needs CAP_SETPCAP. The
    remaining ones are useless after `forbid_new_privileges`."""
    for number in count():
        if number in kept:
            continue
        error = _prctl(_BOUNDING_DROP, number)
        if error:
            return  # EINVAL: the kernel has no more capabilities; EPERM


def survive_change_of_user() -> None:
    """Make setresuid(2) keep the permitted capabilities, until `hold`."""
    _check(_prctl(_KEEP_CAPABILITIES, 1))


def hold(kept: frozenset[Capability]) -> None:
    """Hold exactly these capabilities; an exec by another user loses them. Raises OSError if one is not permitted."""
    _check(_prctl(_AMBIENT, _AMBIENT_CLEAR_ALL))
    _check(_prctl(_KEEP_CAPABILITIES, 0))
    _set(kept, NONE)


def pass_on(kept: frozenset[Capability]) -> None:
    """Hold these capabilities across the next exec too; for the child of a fork."""
    _set(kept, kept)
    for capability in kept:
        _check(_prctl(_AMBIENT, _AMBIENT_RAISE, capability))


def forbid_new_privileges() -> None:
    """Prevent this process and its children from gaining privileges by an exec: set-user-id bits are ignored."""
    _check(_prctl(_NO_NEW_PRIVILEGES, 1))


def hide() -> None:
    """Hide this process in /proc from other processes of the same user, until it executes a program."""
    _check(_prctl(_DUMPABLE, 0))


def _set(held: frozenset[Capability], inheritable: frozenset[Capability]) -> None:
    mask, passed = (sum(1 << capability for capability in chosen) for chosen in (held, inheritable))
    header = struct.pack("@Ii", _VERSION_3, 0)
    low = struct.pack("@III", *(part & 0xFFFFFFFF for part in (mask, mask, passed)))
    high = struct.pack("@III", *(part >> 32 for part in (mask, mask, passed)))
    _check(last_errno() if c_library().capset(header, low + high) else 0)


def _prctl(option: int, second: int, third: int = 0) -> int:
    """Call prctl(2) and return the errno; 0 for success."""
    import ctypes  # imported here because most programs don't need it

    arguments = (ctypes.c_ulong(argument) for argument in (second, third, 0, 0))
    return last_errno() if c_library().prctl(option, *arguments) < 0 else 0


def _check(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))
