"""Which origins may be attached by others than this host's operator: records of the cluster, the REST API.

An origin is a place that this node asks with its own credentials, and whose bytes all of its users then read. So one
that came from outside is attached only where the configuration has it: it lies at or below a configured mount or an
entry of `allowed_origins`, and no option of it leads credentials elsewhere.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from headrace.base.errors import OriginDeniedError, UsageError
from headrace.config.schema import MountConfig
from headrace.origin.factory import parse_origin
from headrace.origin.options import COMMON, STEERING

ANY = "*"
ENDPOINT = "endpoint="
WEB = ("http", "https")


class AllowedOrigins:
    """text: as the setting: URLs with commas between, `SCHEME://*` for all of a kind, and `endpoint=URL`. mounts: of
    the configuration, which are allowed with the options that they have. UsageError."""

    def __init__(self, text: str, mounts: Mapping[str, MountConfig]) -> None:
        self._prefixes: list[str] = []
        self._given: set[tuple[str, str, str]] = set()
        self._endpoints: set[str] = set()
        for word in filter(None, (word.strip() for word in text.split(","))):
            if word.startswith(ENDPOINT):
                self._endpoints.add(_endpoint(word.removeprefix(ENDPOINT)))
            else:
                self._prefixes.append(_prefix(word))
        for mount in mounts.values():
            url = parse_origin(mount.url)
            self._prefixes.append(url)
            for name, value in mount.options.items():
                self._given.add((_scheme(url), name, _endpoint(value) if name == "endpoint" else value))

    def check(self, url: str, options: Mapping[str, str]) -> None:
        """Return where it may be attached. OriginDeniedError, and UsageError for what is no origin. Asks nobody."""
        url = parse_origin(url)
        what = f"origin {url}"
        if not any(_is_below(url, prefix) for prefix in self._prefixes):
            raise OriginDeniedError(
                what, why="no mount of the configuration is there", hint="see allowed_origins"
            )
        for name, value in options.items():
            if not self._is_harmless(_scheme(url), name, value):
                raise OriginDeniedError(
                    what,
                    why=f"its option {name} may lead elsewhere, and no mount of the configuration has it so",
                    hint="see allowed_origins",
                )

    def _is_harmless(self, scheme: str, name: str, value: str) -> bool:
        """Secrets that come with the origin are its own: they take the place of this node's."""
        if name == "endpoint":
            value = _endpoint(value)
        if (scheme, name, value) in self._given or (name == "endpoint" and value in self._endpoints):
            return True
        return name not in STEERING[scheme] if scheme in STEERING else name in COMMON


def _prefix(word: str) -> str:
    scheme, _, rest = word.partition("://")
    if rest == ANY:
        return f"{scheme.lower()}://"
    if ANY in word or ("://" not in word and not word.startswith("/")):
        raise UsageError(
            f"setting allowed_origins: {word!r}",
            why="neither a URL nor an absolute path; * stands for all of a scheme",
            hint="for example s3://bucket/prefix, s3://*, /data",
        )
    return parse_origin(word)


def _is_below(url: str, prefix: str) -> bool:
    if prefix.endswith("://"):
        return url.startswith(prefix)
    scheme, place = _parts(url)
    allowed_scheme, allowed = _parts(prefix)
    plain = not any(name in ("", ".", "..") or "\\" in name or "%" in name for name in place[1:])
    return plain and scheme == allowed_scheme and place[: len(allowed)] == allowed


def _parts(url: str) -> tuple[str, list[str]]:
    """Scheme, and the names below it as the one who serves them reads them; the host or bucket is the first."""
    scheme, _, rest = url.partition("://")
    names = rest.split("/")
    if scheme in WEB:
        names = [names[0].lower(), *(urllib.parse.unquote(name) for name in names[1:])]
        names = [names[0], *(part for name in names[1:] for part in name.split("/"))]
    if scheme == "file":
        names = ["", *(name for name in names[1:] if name)]
    return scheme, names


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _endpoint(text: str) -> str:
    """In its one form."""
    parts = urllib.parse.urlsplit(text)
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
