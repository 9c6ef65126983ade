"""The name in a certificate: `headrace://CLUSTER/node/ID`, or a SPIFFE id of a form that the configuration gives.

Certificates are checked by OpenSSL; what is read here is the URI of one that was found good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.base.errors import UsageError

NODE, OPERATOR, CLIENT, SERVICE = "node", "operator", "client", "service"
ROLES = (NODE, OPERATOR, CLIENT, SERVICE)
"""An operator may seal what is attached, pinned, and done by all nodes, and ask the REST API. A client may ask the REST
API; a service (etcd, a user of etcd) is no part of Headrace, and may ask nobody."""
DEFAULT_FORM = "headrace://{cluster}/{role}/{name}"
PART_CHARACTERS_MAX = 253
URI_CHARACTERS_MAX = 2048
"""As SPIFFE has it."""
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PLACE = re.compile(r"\{([a-z]*)\}")


class StrangerError(Exception):
    """The other side is not who it must be. The text is for this node's log: nothing of it goes over the wire."""


class Identity(NamedTuple):
    cluster: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name} of cluster {self.cluster}"


def check_part(text: str, of: str) -> None:
    """Accept a name that can stand in a certificate. UsageError."""
    if not _PART.fullmatch(text) or len(text) > PART_CHARACTERS_MAX:
        raise UsageError(
            f"{of} {text[:80]!r}", why="no name for a certificate", hint="letters, digits, . _ and -"
        )


class NameForm:
    """text: a URI with {role} and {name} in it, and {cluster} where it is told: each a whole part between slashes, or
    the end of one. UsageError."""

    def __init__(self, text: str = DEFAULT_FORM) -> None:
        self._text = text
        places = _PLACE.findall(text)
        scheme, colon, rest = text.partition("://")
        if not (
            colon
            and scheme
            and {"role", "name"} <= set(places) <= {"cluster", "role", "name"}
            and len(set(places)) == len(places)
            and not {"{", "}"} & set(_PLACE.sub("", text))
            and all(_ends_part(rest, place) for place in places)
        ):
            raise UsageError(
                f"setting tls_identity = {text!r}",
                why="not a URI with {role} and {name}, each at the end of a part",
                hint=f"for example {DEFAULT_FORM} or spiffe://example.org/headrace/{{cluster}}/{{role}}/{{name}}",
            )
        self._names_cluster = "cluster" in places
        pattern = re.escape(text)
        for place in places:
            pattern = pattern.replace(re.escape(f"{{{place}}}"), f"(?P<{place}>{_PART.pattern})")
        self._pattern = re.compile(pattern)

    def uri_of(self, identity: Identity) -> str:
        """UsageError for a name that can't stand there."""
        for of in ("cluster", "role", "name"):
            check_part(getattr(identity, of), of)
        return self._text.format(cluster=identity.cluster, role=identity.role, name=identity.name)

    def read(self, uri: str) -> Identity | None:
        """None where the URI is of another form. cluster: "" where the form does not tell it."""
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
        """Return the one identity among the URIs of a certificate. StrangerError where there is none, or more."""
        identities = [identity for uri in uris if (identity := self.read(uri)) is not None]
        if len(identities) != 1:
            raise StrangerError(
                f"its certificate has {len(identities) or 'no'} names of the form {self._text}"
                + (f", but {', '.join(uris)[:200]}" if uris and not identities else "")
            )
        return identities[0]


def uris_of(certificate: Mapping[str, Any]) -> list[str]:
    """Of a certificate as `SSLSocket.getpeercert` tells it."""
    return [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]


def _ends_part(rest: str, place: str) -> bool:
    before, _, after = rest.partition(f"{{{place}}}")
    return after[:1] in ("", "/") and not before.endswith("}")
