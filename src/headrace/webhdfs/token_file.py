"""Keep the file of tokens for Hadoop's clients up to date with the tokens of the gateway."""

from __future__ import annotations

import logging
import threading

from headrace.base.errors import UsageError
from headrace.base.reloaded import CHECK_INTERVAL_S
from headrace.base.tokens import Tokens
from headrace.webhdfs.tokens import write_token_file

log = logging.getLogger(__name__)


class TokenFile:
    """Writes the newest token on construction, and within a second or two of each change. A thread does that, as
    clients may read the file before any request. `services` are those of `token_file`. Raises UsageError if the file
    can't be written at construction."""

    def __init__(self, path: str, tokens: Tokens, services: list[str]) -> None:
        self._path = path
        self._tokens = tokens
        self._services = services
        self._written = ""
        self._ended = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, daemon=True, name="token-file")
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(CHECK_INTERVAL_S):
            try:
                self._write()
            except UsageError as error:
                log.warning("the file of tokens for Hadoop's clients can't be updated error=%s", error)

    def _write(self) -> None:
        newest = self._tokens.newest
        if newest != self._written:
            write_token_file(self._path, newest, self._services)
            self._written = newest
