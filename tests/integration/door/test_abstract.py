"""fsspec's own suites over the door."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.tests import abstract

from tests.integration.door.conftest import forget, start

pytestmark = pytest.mark.timeout(60)


class Fixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    """Over a node that persists in the background."""

    @pytest.fixture(scope="class")
    @classmethod
    def door(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
        with pytest.MonkeyPatch.context() as patch:
            host = start(tmp_path_factory.mktemp("door"), patch, write="back")
            yield fsspec.filesystem("headrace")
            forget()
            host.close()

    @pytest.fixture
    def fs(self, door: Any) -> Any:
        return door

    @pytest.fixture
    def fs_path(self, door: Any) -> Iterator[str]:
        door.makedirs("/suite", exist_ok=True)
        yield "/suite"
        if door.exists("/suite"):
            door.rm("/suite", recursive=True)

    @pytest.fixture
    def fs_join(self) -> Any:
        return os.path.join


class TestCopy(abstract.AbstractCopyTests, Fixtures):  # type: ignore[misc]
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):  # type: ignore[misc]
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):  # type: ignore[misc]
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):  # type: ignore[misc]
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):  # type: ignore[misc]
    pass
