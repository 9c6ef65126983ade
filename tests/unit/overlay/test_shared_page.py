"""Readers of a shared page take no lock, so they must see each number as it was before a change or after it."""

from __future__ import annotations

import os

import pytest

from tests.writing_program import written_words

PAGE_BYTES = 4096
EXTENDS_LEASES = """
import sys
from headrace.overlay.lease_marks import DirectoryFlags

flags = DirectoryFlags(f"/proc/self/fd/{sys.argv[1]}")
flags.begin(5)
flags.extend_leases(1e6)
print("begun", flush=True)
while True:
    flags.extend_leases(2e6)
    flags.extend_leases(1e6)
"""
BEGINS_ANEW = """
import sys
from headrace.overlay.lease_marks import DirectoryFlags

flags = DirectoryFlags(f"/proc/self/fd/{sys.argv[1]}")
flags.begin(5)
print("begun", flush=True)
while True:
    flags.begin(6)
    flags.begin(5)
"""
SETS_PAUSES = """
import sys
from headrace.overlay.dirty_throttle import DirtyThrottle

throttle = DirtyThrottle(f"/proc/self/fd/{sys.argv[1]}")
throttle.set(100, 100)
print("begun", flush=True)
while True:
    throttle.set(75, 100)
    throttle.set(100, 100)
"""


@pytest.mark.parametrize(
    "code, first, second",
    [
        (EXTENDS_LEASES, {5}, {10**15, 2 * 10**15}),
        (BEGINS_ANEW, {5, 6}, {0}),
        (SETS_PAUSES, {125, 250}, {0}),
    ],
)
def test_each_number_changes_at_once(code: str, first: set[int], second: set[int]) -> None:
    fd = os.memfd_create("page", os.MFD_CLOEXEC)
    os.ftruncate(fd, PAGE_BYTES)
    with written_words(code, fd) as words:
        for _ in range(500_000):
            assert words[0] in first
            assert words[1] in second
    os.close(fd)
