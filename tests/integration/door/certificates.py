"""Make certificates that sign themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.integration.door.s3.conftest import program


def make_certificate(folder: Path, name: str) -> None:
    """certificate.pem and key.pem, of 127.0.0.1, signed by itself."""
    openssl = program("openssl")
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    words += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(folder / "new-key.pem"), "-out", str(folder / "new-certificate.pem")]
    subprocess.run([openssl, *words, *files], check=True, capture_output=True, timeout=30)
    for file in ("key.pem", "certificate.pem"):
        (folder / f"new-{file}").rename(folder / file)
