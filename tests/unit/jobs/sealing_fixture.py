"""The jobs of a node that seals: the base of several fixtures."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.base.write_modes import WriteModes
from headrace.jobs.jobs import Jobs
from headrace.seal.catalogue import Catalogue, SealId
from headrace.wire.messages import JobState
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.dataplane.spoiled_origin import SpoiledReadPath

SEAL = SealId("a", 1)
NAMES = {"d/a/x": 10, "d/a-b": 2000, "d/a/y/z": 0, "d/large": 3 * MIB + 5, "d/b": 7, "other": 20}


class SealingFixture(SpoiledReadPath):
    """The jobs of a node whose origin has NAMES."""

    def __init__(self, folder: Path, modes: str = "") -> None:
        super().__init__(folder)
        self.truth = {name: self.hold(name, size) for name, size in NAMES.items()}
        self.catalogue = Catalogue.of_cache(str(folder / "v"))
        self.jobs = Jobs(
            *(self.namespace, self.store, self.reads, self.disk),
            catalogue=self.catalogue,
            modes=WriteModes.parse(modes),
            on_damaged=self._damaged,
        )

    async def run(self, kind: str, path: str = "/d", seal: str = "a@1") -> JobState:
        options = {"seal": seal} if "seal" in kind else {}
        return [state async for state in self.jobs.run(kind, path, options)][-1]

    def stored(self, name: str, seal: SealId = SEAL) -> bytes | None:
        """Return a file of a seal; None if it does not exist."""
        path = Path(self.catalogue.path(seal, name))
        return path.read_bytes() if path.exists() else None

    def put(self, name: str, body: bytes) -> None:
        """Replace a file of SEAL."""
        Path(self.catalogue.path(SEAL, name)).write_bytes(body)

    def lose_catalogue(self) -> None:
        """Make all calls of the system for the directory of the seals fail, with ENOTDIR."""
        if os.path.exists(self.catalogue.folder):
            os.rename(self.catalogue.folder, f"{self.catalogue.folder}-away")
        Path(self.catalogue.folder).touch()

    def assert_nothing_left(self) -> None:
        assert not os.path.exists(self.catalogue.folder) or os.listdir(self.catalogue.folder) == []
        assert self.store.sealed.kept_ids() == set()
