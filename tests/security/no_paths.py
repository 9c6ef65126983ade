"""Stand for the paths of a gateway that refuses each request before it reaches any of them."""

from __future__ import annotations

from typing import Any


class Client:
    upper = "/nowhere"

    def status(self) -> dict[str, object]:
        return {}


class NoPaths:
    """Whatever gets through the door fails loudly."""

    client = Client()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"paths.{name} was reached")
