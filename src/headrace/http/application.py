"""Define what a gateway must provide to be served by an HTTP server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from headrace.http.errors import BadRequestError
from headrace.http.messages import Request, Response


class Application(Protocol):
    """Turns requests into answers. It converts its own errors to answers."""

    def cached(self, request: Request) -> Response | None:
        """Return an answer that needs no wait, or None when `answer` must be called. Runs on the waiting thread."""

    def admit(self, request: Request) -> Response | None:
        """Return the refusal that follows from the head alone, or None to continue. Never waits. Calls `authenticate`
        of the request."""

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """Return the answer. Called in a thread of the pool, so it may wait. pieces: the body. Raises HungUpError."""

    def refuse(self, error: BadRequestError) -> Response:
        """Return the answer to an invalid request."""

    def marks(self, response: Response) -> list[tuple[str, str]]:
        """Return the headers of every answer."""

    def clean(self) -> None:
        """Clean up. A thread of the pool calls it every ten minutes."""
