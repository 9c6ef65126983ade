"""TLS between nodes, and of their REST APIs: mutual, both certificates of one authority, from three PEM files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from headrace.base.errors import UsageError


@dataclass(frozen=True, slots=True)
class Contexts:
    server: ssl.SSLContext
    client: ssl.SSLContext


def build_contexts(certificate: str, key: str, authority: str) -> Contexts:
    """Paths of PEM files; reads them now. UsageError where one is missing or wrong.

    Who has a certificate of the authority is a node of the cluster. Host names are not compared: nodes are known by
    their ids and move between addresses.
    """
    return Contexts(
        _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority=authority),
        _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority=authority),
    )


def _context(side: int, certificate: str, key: str, *, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if side == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # sessions are not resumed: connections are kept
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise UsageError(
            f"settings tls_certificate {certificate}, tls_key {key}", why=error.strerror or str(error)
        ) from error
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise UsageError(f"setting tls_authority {authority}", why=error.strerror or str(error)) from error
    return context
