"""A node, with or without a mount, and the file system of it. This process never touches the mount."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from headrace.integrations.fsspec import HeadraceFileSystem
from headrace.vfs.client_registry import HOSTS
from tests.integration.cli.host import Host, wait_until
from tests.integration.persist.conftest import Writer, settled, tree_of

__all__ = ["Host", "MakeDoor", "Writer", "settled", "tree_of", "wait_until"]
MakeDoor = Callable[..., tuple[Host, Any]]


@pytest.fixture(autouse=True)
def _needs_root(needs_root: None) -> None:
    """Mark all tests here."""


def start(base: Path, patch: pytest.MonkeyPatch, *, mounted: bool = False, **settings: object) -> Host:
    """A host whose node runs; the environment of this process leads to it."""
    host = Host(base, **settings)
    fill(host)
    if mounted:
        host.up()
    else:
        config = base / "config.toml"
        config.write_text(f'[mounts."/"]\nurl = "{host.truth}"\n')
        host.start("node", "run", "--config", config, "--cache", f"{host.cache}:1GiB").wait_ready()
    patch.setenv("HEADRACE_RUN_FOLDER", str(host.run_folder))
    patch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    patch.setenv("XDG_CACHE_HOME", str(base / "home-cache"))
    forget()
    return host


def fill(host: Host) -> None:
    """Files of all sizes that matter at the origin."""
    for name, size in {
        "empty": 0,
        "one": 1,
        "small": 110_000,
        "block": 1 << 20,
        "more": (1 << 20) + 1,
    }.items():
        host.put(name, size)
        host.put(f"folder/{name}", size, seed=1)
    host.put("large.tar", (21 << 20) + 321)
    host.put("folder/deeper/still/file", 5000)


def forget() -> None:
    """Nothing of another test's node is known."""
    HeadraceFileSystem.clear_instance_cache()
    HOSTS.close()


@pytest.fixture
def make_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeDoor]:
    """Call with mounted=True and settings, once a test. → the host and its file system."""
    hosts: list[Host] = []

    def make(**settings: Any) -> tuple[Host, Any]:
        hosts.append(start(tmp_path, monkeypatch, **settings))
        return hosts[-1], fsspec.filesystem("headrace")

    yield make
    forget()
    for host in hosts:
        host.close()


def left_in_work(host: Host) -> list[str]:
    """Return the names of files that were begun."""
    return [path.name for path in (host.cache / "upper/work").iterdir()]
