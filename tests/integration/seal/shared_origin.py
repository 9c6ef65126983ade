"""An origin that several hosts share: a directory, or a prefix of SeaweedFS."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server
from tests.integration.cli.host import Host


class Origin:
    """Puts and deletes objects. server: None for the directory."""

    def __init__(self, folder: Path, server: S3Server | None) -> None:
        self.folder = folder
        self.server = server
        self.prefix = f"seals-{os.urandom(4).hex()}"
        folder.mkdir(exist_ok=True)

    def words(self, host: Host) -> list[str]:
        if self.server is None:
            return [str(self.folder)]
        return [self.server.url(self.prefix), *option_words(self.server.options(), str(host.base))]

    def put(self, name: str, body: bytes) -> None:
        if self.server is not None:
            self.server.put(f"{self.prefix}/{name}", body)
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(body)
        new.rename(path)

    def delete(self, name: str) -> None:
        if self.server is not None:
            self.server.delete(f"{self.prefix}/{name}")
        else:
            (self.folder / name).unlink()
