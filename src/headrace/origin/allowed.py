"""Restrict the origins that others than this host's operator may attach: records of the cluster, the REST API.

The node reads an origin with its own credentials, and all of its users can then read the bytes. An origin from
outside is therefore attached only if the configuration allows it: it is at or below a configured mount or an entry of
`allowed_origins`, and none of its options sends credentials elsewhere.
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
    """Decides which origins may be attached from outside.

    `text` is the setting: URLs separated by commas, `SCHEME://*` for a whole scheme, and `endpoint=URL`. `mounts` are
    the configured mounts; they are allowed with their own options. Raises UsageError for an invalid setting.
    """

    def __init__(self, text: str, mounts: Mapping[str, MountConfig]) -> None:
        self._prefixes: list[str] = []
        self._configured_options: set[tuple[str, str, str]] = set()
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
                self._configured_options.add(
                    (_scheme(url), name, _endpoint(value) if name == "endpoint" else value)
                )

    def check(self, url: str, options: Mapping[str, str]) -> None:
        """Return if the origin may be attached; otherwise raise OriginDeniedError, or UsageError for an invalid URL.
        Sends no request."""
        url = parse_origin(url)
        target = f"origin {url}"
        if not any(_is_below(url, prefix) for prefix in self._prefixes):
            raise OriginDeniedError(
                target, why="the configuration does not allow this origin", hint="see allowed_origins"
            )
        for name, value in options.items():
            if not self._is_harmless(_scheme(url), name, value):
                raise OriginDeniedError(
                    target,
                    why=f"its option {name} may send credentials elsewhere, and no configured mount has the same value",
                    hint="see allowed_origins",
                )

    def _is_harmless(self, scheme: str, name: str, value: str) -> bool:
        """Return whether an option can't redirect this node's credentials. Secrets that come with the origin are its
        own and replace this node's."""
        if name == "endpoint":
            value = _endpoint(value)
        if (scheme, name, value) in self._configured_options or (
            name == "endpoint" and value in self._endpoints
        ):
            return True
        return name not in STEERING[scheme] if scheme in STEERING else name in COMMON


def _prefix(word: str) -> str:
    scheme, _, rest = word.partition("://")
    if rest == ANY:
        return f"{scheme.lower()}://"
    if ANY in word or ("://" not in word and not word.startswith("/")):
        raise UsageError(
            f"setting allowed_origins: {word!r}",
            why="neither a URL nor an absolute path; * stands for a whole scheme",
            hint="use entries like s3://bucket/prefix, s3://*, /data",
        )
    return parse_origin(word)


def _is_below(url: str, prefix: str) -> bool:
    if prefix.endswith("://"):
        return url.startswith(prefix)
    scheme, names = _parts(url)
    allowed_scheme, allowed = _parts(prefix)
    plain = not any(name in ("", ".", "..") or "\\" in name or "%" in name for name in names[1:])
    return plain and scheme == allowed_scheme and names[: len(allowed)] == allowed


def _parts(url: str) -> tuple[str, list[str]]:
    """Return the scheme and the names below it, as the server interprets them; the first is the host or bucket."""
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
    """Return the endpoint in its canonical form. Raise UsageError for a text that is no URL."""
    try:
        parts = urllib.parse.urlsplit(text)
    except ValueError as error:
        raise UsageError(
            "option endpoint", why="it is no URL", hint="use one like https://host:9000"
        ) from error
    return f"{parts.scheme.lower()}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
