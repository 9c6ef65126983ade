"""Types are described to msgspec by one thread at a time."""

from __future__ import annotations

import subprocess
import sys

FIRST_USES = """
import sys
import threading
import msgspec
from headrace.base.decoding import convert_words

sys.setswitchinterval(1e-6)
VALUES = {f"field{number}": "1" for number in range(30)}


def decode(barrier, kind, decoded):
    barrier.wait()
    decoded.append(convert_words({"inner": VALUES, **VALUES}, kind))


for _ in range(60):
    fields = [(name, int) for name in VALUES]
    inner = msgspec.defstruct("Inner", fields)
    kind = msgspec.defstruct("Outer", [("inner", inner), *fields])
    barrier, decoded = threading.Barrier(8), []
    threads = [threading.Thread(target=decode, args=(barrier, kind, decoded)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decoded) == 8 and all(value.inner.field29 == 1 for value in decoded)
"""


def test_threads_that_decode_a_type_for_the_first_time() -> None:
    """msgspec alone ends the process in the middle of it."""
    process = subprocess.run([sys.executable, "-c", FIRST_USES], check=False, capture_output=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, b"")
