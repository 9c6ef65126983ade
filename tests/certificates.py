"""Certificates for tests: right ones, and those that an attacker may have."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.identity import authority as making
from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls, TlsFiles
from headrace.identity.names import NODE

CLUSTER = "lab"


def authority(folder: Path, cluster: str = CLUSTER) -> Authority:
    return Authority.make(str(folder), cluster)


def issued(
    authority: Authority, name: str, *, role: str = NODE, uri: str = "", days: float = 1, file: str = ""
) -> TlsFiles:
    """uri: instead of the one that belongs to name and role. days: also below 0. file: the directory's name."""
    folder = os.path.join(os.path.dirname(authority.path), file or f"{name}-{role}")
    os.mkdir(folder, 0o700)
    key = making._new_key()
    uri = uri or f"headrace://{authority.cluster}/{role}/{name}"
    certificate = authority._certified(key.public_key(), name, uri, role=role, days=days, hosts=["127.0.0.1"])
    files = TlsFiles(os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem"), authority.path)
    making._write(files.certificate, making._pem(certificate))
    making._write(files.key, making._key_bytes(key))
    return files


def mutual(authority: Authority, name: str, *, role: str = NODE) -> MutualTls:
    return MutualTls(issued(authority, name, role=role))


def settings_of(files: TlsFiles) -> dict[str, str]:
    """Return the settings of the configuration that name these files."""
    return {
        "tls_certificate": files.certificate,
        "tls_key": files.key,
        "tls_authority": files.authority,
    }
