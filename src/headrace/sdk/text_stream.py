"""Wrap an open binary file as text."""

from __future__ import annotations

import io
from types import TracebackType

from headrace.vfs.streams import WriteStream


class TextStream(io.TextIOWrapper):
    """Reads or writes text. An exception inside `with` discards what was written, as of a binary file."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and isinstance(self.buffer, WriteStream):
            self.buffer.discard()
        super().__exit__(kind, error, trace)
