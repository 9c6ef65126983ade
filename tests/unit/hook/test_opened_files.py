"""Which files a process opens while it loads a sample. A program never sees an error of the hook."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from headrace.hook.mounts import MountedPaths
from headrace.hook.opened_files import OpenedSampleFiles, _audit_hook


class AuditedSamples:
    """A data set whose samples raise events, as Python does for each `open`, and as a library may."""

    def __init__(self, audit: Callable[[str, tuple[Any, ...]], None]) -> None:
        self._audit = audit

    def __getitem__(self, index: int) -> int:
        self._audit("open", ("of a library",))
        self._audit("open", ("of a library", "r", os.O_RDONLY, "more"))
        self._audit("open", ("written", "w", os.O_WRONLY))
        self._audit("open", (f"{index}", "r", os.O_RDONLY))
        return index


def test_events_of_a_library_do_not_disturb_a_program() -> None:
    files = OpenedSampleFiles("/nothing", MountedPaths([]))
    audit = _audit_hook(files)
    assert files.load(AuditedSamples(audit), 17) == 17
    assert files.take() == [(17, "17")]
    audit("open", ("later", "r", os.O_RDONLY))
    assert files.take() == []
