"""Says what a benchmark sees at once, and continues when one contender fails."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.errors import HeadraceError

from .machine import NotRunError
from .results import Results


class Telling:
    results: Results

    def say(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    @contextmanager
    def attempt(self, measure: str, contender: str) -> Iterator[None]:
        """List what fails inside as not run, with its reason; the others continue."""
        try:
            yield
        except (NotRunError, HeadraceError, OSError, KeyError, ValueError) as error:
            reason = str(error) if isinstance(error, NotRunError) else f"{type(error).__name__}: {error}"
            self.say(f"  {contender} not run: {reason}")
            self.results.skip(measure, contender, reason)
