"""Runs one input and says what is wrong: a wrong error, a hang, memory that grows."""

from __future__ import annotations

import contextlib
import resource
import signal
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

from tests.fuzz.fuzzer import Fuzzer

HANG_S = 1.0
GROWTH_BYTES_MAX = 64 << 20
RESERVE_BYTES = 512 << 20
"""Address space beyond what is in use. A larger request fails with MemoryError, whether its memory is touched or
not."""
_STATM = "/proc/self/statm"
_PAGE_BYTES = resource.getpagesize()


class Hang(BaseException):
    """The input took more than HANG_S of processor time."""


@dataclass(frozen=True)
class Finding:
    """kind: the same for all inputs that show the same defect. story: a line about it."""

    kind: str
    story: str


class Judge:
    """Watches the process; one at a time, in its main thread."""

    def __init__(self, fuzzer: Fuzzer) -> None:
        self._fuzzer = fuzzer
        self._peak_bytes = peak_bytes()

    def __enter__(self) -> Judge:
        self._handler = signal.signal(signal.SIGPROF, _hang)
        self._limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + RESERVE_BYTES, self._limits[1]))
        self.begin_anew()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, self._limits)
        signal.signal(signal.SIGPROF, self._handler)

    def begin_anew(self) -> None:
        """Count what the process holds by now not as the next input's growth."""
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
            reset.write("5")
        self._peak_bytes = peak_bytes()

    def look_at(self, data: bytes) -> Finding | None:
        finding = None
        try:
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            try:
                self._fuzzer.parse(data)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except self._fuzzer.refuses:
            pass
        except (Hang, Exception) as error:  # noqa: BLE001 - whatever a parser raises
            finding = _finding_of(error)
        grown_bytes = peak_bytes() - self._peak_bytes
        if grown_bytes > GROWTH_BYTES_MAX:
            self.begin_anew()
            finding = finding or Finding("growth", f"memory grew by {grown_bytes >> 20} MiB")
        return finding


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def resident_bytes() -> int:
    return _pages(1)


def _pages(column: int) -> int:
    with open(_STATM, encoding="ascii") as source:
        return int(source.read().split()[column]) * _PAGE_BYTES


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_S} s of processor time")


def _finding_of(error: BaseException) -> Finding:
    """Named by the error and the innermost line of the program that it came through."""
    trace = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in trace if "/headrace/" in frame.filename] or list(trace)
    where = f"{ours[-1].filename.rpartition('/src/')[2].rpartition('/tests/')[2]}:{ours[-1].lineno}"
    kind = "hang" if isinstance(error, Hang) else f"{type(error).__name__} at {where}"
    return Finding(kind, f"{type(error).__name__} at {where} ({ours[-1].name}): {str(error)[:160]!r}")
