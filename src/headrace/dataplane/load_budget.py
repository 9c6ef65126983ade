"""Ask the budgets of origins before files are loaded that nobody waits for."""

from __future__ import annotations

from headrace.base.errors import PathNotFoundError
from headrace.base.model import Entry
from headrace.dataplane.source import SourceFactory
from headrace.namespace.tree import NameTree


class LoadBudget:
    """The budgets of the origins of a node, by file."""

    def __init__(self, tree: NameTree, sources: SourceFactory) -> None:
        self._tree = tree
        self._sources = sources

    async def admit(self, entry: Entry, size_bytes: int, job: str) -> None:
        """Wait until background work may read so many bytes of a file. Raise OriginBudgetSpentError."""
        mount, _, _ = self._tree.locate(entry.id)
        await self._sources.accounts.admit(mount, size_bytes, job)

    def has_debt(self, entry: Entry) -> bool:
        """Return whether `admit` would wait. Such a wait delays what is fetched from other origins."""
        try:
            mount, _, _ = self._tree.locate(entry.id)
        except PathNotFoundError:
            return False
        return self._sources.accounts.has_debt(mount)
