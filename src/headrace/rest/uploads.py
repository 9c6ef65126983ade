"""Remember the uploads that created a file. A client that lost the answer sends its upload again, and must not take its
own file for that of another client."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_MAX = 10_000
"""Most uploads that are remembered. A client repeats one within a minute or so."""
_ID = re.compile(r"[0-9a-f]{32}")


class CreatedFiles:
    """Remembers uploads by the id that the client chose, and by path. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[tuple[str, bytes]] = set()
        self._created: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    @contextmanager
    def once(self, id: str, path: bytes) -> Iterator[bool]:
        """Provide whether the upload created its file before. If the context ends without an error, it has. Waits for
        the same upload if that runs. An invalid id is that of no upload."""
        if not _ID.fullmatch(id):
            yield False
            return
        key = id, path
        with self._changed:
            self._changed.wait_for(lambda: key not in self._running)
            self._running.add(key)
            was_created = key in self._created
        try:
            yield was_created
            self._created[key] = None
            while len(self._created) > KEPT_MAX:
                self._created.popitem(last=False)
        finally:
            with self._changed:
                self._running.discard(key)
                self._changed.notify_all()
