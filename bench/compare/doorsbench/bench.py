"""Holds what the cases share: settings, the object store, the data, a mount with a node, workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from nodebench import data
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import Workplace, run_worker
from nodebench.results import Results
from nodebench.server import Server
from nodebench.telling import Telling

from . import readers

PLAIN, OURS = "plain", "headrace"


class _Mount(HeadraceMount):
    more: Mapping[str, str] = {}
    """Of the environment."""

    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.more}


@dataclass
class Bench(Telling):
    place: Workplace
    server: Server
    results: Results
    scale: float
    repeat: int
    seconds: float
    """How long each contender of the gateways is asked, each time."""
    root: str = ""
    """The plain folder; what is in it is at the server, too."""
    names: str = ""
    """A file with the names of the small files, one a line."""
    bytecode: str = field(default="")

    def add(self, measure: str, contender: str, value: float, *, unit: str) -> None:
        self.say(f"  {contender} {value:,.2f} {unit}")
        self.results.add(measure, contender, value, unit=unit)

    def worker(self, *words: object, timeout_s: float = 300) -> Any:
        """Run a worker in a process of its own, whose modules are compiled once for all, as installed ones are."""
        environment = self.environment() | {
            "PYTHONPYCACHEPREFIX": self.bytecode,
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return run_worker(readers.__file__, *words, timeout_s=timeout_s, env=environment)

    def environment(self) -> dict[str, str]:
        """Its nodes are the only ones that its programs find."""
        return {"HEADRACE_RUN_FOLDER": os.path.join(self.place.root, "run")}

    def make_small(self) -> None:
        """Make the small files, in the plain folder and at the server; once for all cases."""
        if not self.names:
            self.bytecode = self.place.folder("bytecode")
            self.names = os.path.join(self.place.folder("names"), "small")
            self.say("small files, and the same at the server")
            data.make_small(self.root, self.names, max(200, round(10_000 * self.scale)))
            self.upload("small")

    def upload(self, folder: str) -> None:
        there = f"s3://{self.server.bucket}/{folder}/"
        data.s5cmd(self.server, ["cp", f"{self.root}/{folder}/", there], timeout_s=300)

    @contextmanager
    def up(self) -> Iterator[HeadraceMount]:
        """A mount in passthrough mode, its node, and an empty cache."""
        options = {key: value for key, value in self.server.options().items() if key != "endpoint"}
        url, endpoint = self.server.url(""), self.server.endpoint
        mount = _Mount(self.place, url, io="passthrough", endpoint=endpoint, options=options)
        mount.more = self.environment()
        try:
            mount.start()
            yield mount
        finally:
            mount.stop()
