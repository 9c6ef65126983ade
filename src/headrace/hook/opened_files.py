"""Learn which files a sample is made of, from what the processes that load samples open.

An audit hook of Python sees each `open` of a file (https://docs.python.org/3/library/audit_events.html). While a
worker loads sample 17, the files it opens are those of sample 17. Files that a library opens in C are not seen.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from multiprocessing import parent_process
from threading import get_ident
from typing import Any

from .data_set_keys import data_set_key
from .frames import PlanConnection, PlanRefusedError
from .interruptions import raise_interruption
from .mounts import MountedPaths
from .sample_extents import has_extents
from .sample_files import DEPTH_MAX, is_known
from .samplers import SAMPLES_MAX

TIMEOUT_S = 2.0
BATCHES_FIRST = 4
"""Batches of which a worker reports the files, of a data set whose files are known: so a wrong map is noticed."""
BATCHES_LATER = 64
"""Later, and once each sample was loaded, it reports one batch in so many. The same holds for a data set whose first
batches opened no file of a mount."""
RETRY_S = 60.0
"""Seconds after which a process reports again, after the node did not answer. It waited TIMEOUT_S for that."""
OPENED_MAX = 1 << 16
"""Files of one batch that are noted. It is what a message may have."""


class _LoadedSample:
    """Notes the files that are opened for one sample. index: None if they are not noted. own: by the thread that loads
    it. others: by threads that load no sample."""

    __slots__ = ("index", "others", "own")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.own: list[str] = []
        self.others: list[str] = []


class OpenedSampleFiles:
    """Follows what this process opens while it loads samples."""

    def __init__(self, socket_path: str, mounts: MountedPaths) -> None:
        self._socket_path = socket_path
        self._mounts = mounts
        self.loaded: dict[int, _LoadedSample] = {}
        """The sample that each thread loads now. One sample may load others: then it is the innermost."""
        self._is_hooked = False
        self._silent_until_s = 0.0

    def mark(self, data_set: Any, *, auto_collation: bool) -> Any:
        """Return what a fetcher is to read instead of its data set: the data set itself where nothing can be learned,
        as a batch that is read in one call doesn't say which file is whose."""
        if not auto_collation or not hasattr(data_set, "__len__"):
            return data_set
        if getattr(data_set, "__getitems__", None) and not _is_subset_of_single_samples(data_set):
            return data_set
        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(_audit_hook(self))
        return MarkedDataSet(data_set, self)

    def load(self, data_set: Any, index: Any, opened: list[tuple[int, str]]) -> Any:
        """Load a sample, and append the files that are opened meanwhile: (index, path). If this thread opens none in a
        mount, they are those of other threads, as a sample may be loaded in threads."""
        thread = get_ident()
        outer = self.loaded.get(thread)
        sample = self.loaded[thread] = _LoadedSample(index if isinstance(index, int) and index >= 0 else None)
        try:
            return data_set[index]
        finally:
            if outer is None:
                del self.loaded[thread]
            else:
                self.loaded[thread] = outer
            if sample.others and not any(map(self._is_in_mount, sample.own)):
                sample.own += sample.others
            if len(opened) + len(sample.own) <= OPENED_MAX:
                opened.extend((index, path) for path in sample.own)

    def _is_in_mount(self, path: str) -> bool:
        return self._mounts.namespace_path(path) is not None

    def in_mounts(self, opened: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the noted files that are in a mount, with their paths in the namespace."""
        pairs = [(index, self._mounts.namespace_path(path)) for index, path in opened]
        return [(index, path) for index, path in pairs if path is not None]

    def report(self, key: str, known: list[tuple[int, str]]) -> bool:
        """Send files of mounts to the node. Return False if it does not want them, or can't be reached, now or of
        late."""
        if time.monotonic() < self._silent_until_s:
            return False
        try:
            connection = PlanConnection(self._socket_path, timeout_s=TIMEOUT_S)
            try:
                paths = b"\0".join(os.fsencode(path) for _, path in known)
                connection.ask("PlanLearn", key=key, indices=[index for index, _ in known], paths=paths)
            finally:
                connection.close()
        except (OSError, PlanRefusedError) as error:
            raise_interruption(error)  # TimeoutError is an OSError, too
            self._silent_until_s = time.monotonic() + RETRY_S
            return False
        return True

    def note_open(self, path: object, flags: object) -> None:
        """Note a file that was opened to be read, for the sample that this thread loads. Another thread may open it for
        the only sample that is being loaded."""
        sample = self.loaded.get(get_ident())
        opened = [] if sample is None else sample.own
        if sample is None:
            samples = list(self.loaded.values())
            if len(samples) != 1:
                return
            sample, opened = samples[0], samples[0].others
        if sample.index is None or len(opened) >= OPENED_MAX:
            return
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str) and isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
            opened.append(path)


def _is_subset_of_single_samples(data_set: Any) -> bool:
    """Return whether a data set is a Subset of torch whose batches are loaded sample by sample."""
    torch_subset = sys.modules["torch.utils.data"].Subset
    for _ in range(DEPTH_MAX):
        if type(data_set) is not torch_subset:
            return not callable(getattr(data_set, "__getitems__", None))
        data_set = data_set.dataset
    return False


def _audit_hook(files: OpenedSampleFiles) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook. It is a function, not a bound method: at each event Python looks for an attribute that the
    hook does not have, which takes a method longer than all else here."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if files.loaded and event == "open" and len(arguments) == 3:  # libraries may raise events, too
            path, _, flags = arguments
            files.note_open(path, flags)

    return audit


class MarkedDataSet:
    """Stand for a data set in the process that loads its samples, and report the files that are opened for each."""

    def __init__(self, data_set: Any, files: OpenedSampleFiles) -> None:
        torch_data = sys.modules["torch.utils.data"]
        parent = None if torch_data.get_worker_info() is None else parent_process()
        self.data_set = data_set
        self._files = files
        self._key = data_set_key(data_set, os.getpid() if parent is None else int(parent.pid or 0))
        self._is_known = is_known(data_set) or has_extents(data_set)
        self._loaded = bytearray(0 if self._is_known else min(len(data_set), SAMPLES_MAX))
        self._missing = len(self._loaded)
        self._opened: list[tuple[int, str]] = []
        self._batches = 0
        self._are_noted = True
        self._outside = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["data_set"], name)

    def __getitem__(self, index: Any) -> Any:
        return self._files.load(self.data_set, index, self._opened)

    @property
    def __getitems__(self) -> Callable[[Any], list[Any]] | None:
        """Return what torch loads batches by: None if samples are loaded one by one. It is not kept: the data set of
        the program would then outlive its last use, until Python looks for cycles."""
        return self._load_subset if getattr(self.data_set, "__getitems__", None) else None

    def _load_subset(self, indices: Any) -> list[Any]:
        """Load a batch of a Subset, sample by sample, as that does."""
        indices = list(indices)
        if any(isinstance(index, list) for index in indices):
            return list(self.data_set.__getitems__(indices))
        return [self[index] for index in indices]

    def of_batch(self) -> Any:
        """Return what loads the next batch: the data set itself, if its files are not noted."""
        return self if self._are_noted else self.data_set

    def end_batch(self) -> None:
        """Report the files of a batch, unless enough is known. Decide whether those of the next one are noted."""
        if self._are_noted:
            opened, self._opened = self._opened, []
            self._report(opened)
        self._batches += 1
        is_checked = self._batches < BATCHES_FIRST or self._batches % BATCHES_LATER == 0
        is_learned = self._missing and self._outside < BATCHES_FIRST
        self._are_noted = bool(is_checked or is_learned)

    def _report(self, opened: list[tuple[int, str]]) -> None:
        known = self._files.in_mounts(opened)
        self._outside = 0 if known else self._outside + 1
        if known and not self._files.report(self._key, known):
            return
        for index, _ in opened:
            if index < len(self._loaded) and not self._loaded[index]:
                self._loaded[index] = 1
                self._missing -= 1


def end_batch(marked: MarkedDataSet) -> None:
    """Say that a fetcher has loaded a batch."""
    try:
        marked.end_batch()
    except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
        raise_interruption(error)
