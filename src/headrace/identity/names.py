"""Parse the name in a certificate: `headrace://CLUSTER/node/ID`, or a SPIFFE id in a form that the configuration
gives.

OpenSSL verifies certificates; this module reads the URI of a verified one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.base.errors import UsageError

NODE, OPERATOR, CLIENT, SERVICE = "node", "operator", "client", "service"
ROLES = (NODE, OPERATOR, CLIENT, SERVICE)
"""An operator may seal mounts, pins, policies and cluster-wide jobs, and call the REST API. A client may call the REST
API. A service (etcd, or a user of etcd) is no part of Headrace and may call nothing."""
DEFAULT_FORM = "headrace://{cluster}/{role}/{name}"
PART_CHARACTERS_MAX = 253
URI_CHARACTERS_MAX = 2048
"""Characters of a URI at most, as SPIFFE sets them."""
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PLACE = re.compile(r"\{([a-z]*)\}")


class StrangerError(Exception):
    """The other side is not who it must be. The text is for this node's log and is never sent."""


class Identity(NamedTuple):
    """Identifies a node, operator, client or service of a cluster."""

    cluster: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name} of cluster {self.cluster}"


def check_part(text: str, field: str) -> None:
    """Raise UsageError for a name that can't be part of a certificate's name. field: for the message."""
    if not _PART.fullmatch(text) or len(text) > PART_CHARACTERS_MAX:
        raise UsageError(
            f"{field} {text[:80]!r}",
            why="it can't be a name in a certificate",
            hint="use letters, digits, . _ and -",
        )


class NameForm:
    """Formats and parses names in certificates. text: a URI with {role} and {name}, and perhaps {cluster}; each is a
    whole part between slashes, or the end of one. Raise UsageError."""

    def __init__(self, text: str = DEFAULT_FORM) -> None:
        self._text = text
        fields = _PLACE.findall(text)
        scheme, colon, rest = text.partition("://")
        if not (
            colon
            and scheme
            and {"role", "name"} <= set(fields) <= {"cluster", "role", "name"}
            and len(set(fields)) == len(fields)
            and not {"{", "}"} & set(_PLACE.sub("", text))
            and all(_ends_part(rest, field) for field in fields)
        ):
            raise UsageError(
                f"setting tls_identity = {text!r}",
                why="it is not a URI with {role} and {name}, each at the end of a part",
                hint=f"for example {DEFAULT_FORM} or spiffe://example.org/headrace/{{cluster}}/{{role}}/{{name}}",
            )
        pattern = re.escape(text)
        for field in fields:
            pattern = pattern.replace(re.escape(f"{{{field}}}"), f"(?P<{field}>{_PART.pattern})")
        self._pattern = re.compile(pattern)

    def uri_of(self, identity: Identity) -> str:
        """Return the URI of an identity. Raise UsageError for a name that can't be part of it."""
        for field in ("cluster", "role", "name"):
            check_part(getattr(identity, field), field)
        return self._text.format(cluster=identity.cluster, role=identity.role, name=identity.name)

    def read(self, uri: str) -> Identity | None:
        """Return the identity in a URI, or None when the URI has another form. cluster: "" when the form has none."""
        if len(uri) > URI_CHARACTERS_MAX:
            return None
        match = self._pattern.fullmatch(uri)
        if match is None:
            return None
        parts = match.groupdict(default="")
        if parts["role"] not in ROLES or any(len(part) > PART_CHARACTERS_MAX for part in parts.values()):
            return None
        return Identity(parts.get("cluster", ""), parts["role"], parts["name"])

    def of_uris(self, uris: list[str]) -> Identity:
        """Return the one identity among the URIs of a certificate. Raise StrangerError when there is none, or more
        than one."""
        identities = [identity for uri in uris if (identity := self.read(uri)) is not None]
        if len(identities) != 1:
            raise StrangerError(
                f"its certificate has {len(identities) or 'no'} names of the form {self._text}"
                + (f", but {', '.join(uris)[:200]}" if uris and not identities else "")
            )
        return identities[0]


def uris_of(certificate: Mapping[str, Any]) -> list[str]:
    """Return the URIs of a certificate, as `SSLSocket.getpeercert` returns it."""
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]


def _ends_part(rest: str, field: str) -> bool:
    before, _, after = rest.partition(f"{{{field}}}")
    return after[:1] in ("", "/") and not before.endswith("}")
