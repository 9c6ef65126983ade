"""Attach origins to the namespace: those of the configuration, those that the index remembers, and those that
requests add."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    DeadlineExceededError,
    HeadraceError,
    OriginUnavailableError,
    UsageError,
)
from headrace.base.places import check_places
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config, public_options
from headrace.config.secret_options import resolve_options
from headrace.entry.rpc.server import Subscribers
from headrace.namespace.mounts import Mount, normal_path
from headrace.namespace.namespace import Namespace
from headrace.node.mount_traces import MountTraces
from headrace.node.origin_events import OriginEvents
from headrace.origin.allowed import AllowedOrigins
from headrace.origin.factory import FAR_CLUSTER, build_origin, parse_origin
from headrace.origin.far_trace import FarTrace
from headrace.origin.object_check import check_origin
from headrace.origin.options import parse_options, verifies_opens
from headrace.origin.origin import Origin
from headrace.origin.pace import OriginPace, OriginPaces
from headrace.origin.reserved import NamespaceOrigin
from headrace.receivers.factory import check_events
from headrace.store.index import Index
from headrace.store.recovery import doubt
from headrace.wire.messages import Invalidated

log = logging.getLogger(__name__)

CHECK_LIMIT_S = 10.0
CONFIGURED = "configured"
"""Marks a mount in the index that the configuration names."""
BY_OPERATOR = "by_operator"
"""Marks a mount in the index that an operator of this host attached, without limits, while the node had no cluster."""


class Attachments:
    """Attaches and detaches the mounts of this node, and keeps them in the index.

    has_written: returns whether this cache has files that wait for an origin; then the node starts without it.
    """

    def __init__(
        self,
        config: Config,
        index: Index,
        namespace: Namespace,
        subscribers: Subscribers,
        *,
        paces: OriginPaces,
        events: OriginEvents,
        traces: MountTraces,
        has_written: Callable[[], bool],
    ) -> None:
        self._config = config
        self._index = index
        self._namespace = namespace
        self._subscribers = subscribers
        self._paces = paces
        self._events = events
        self.traces = traces
        self._has_written = has_written
        self.allowed = AllowedOrigins(config.allowed_origins, config.mounts)

    async def attach_configured(self, *, check: bool) -> None:
        """Attach the mounts of the configuration, then those that the index remembers at other paths. The index also
        stores the URLs of configured mounts, because clients name origins by it; entries of an earlier configuration
        are deleted."""
        remembered = self._index.mounts.all()
        for path, record in remembered.items():
            if CONFIGURED in record:
                self._index.mounts.drop(path)
        configured = {normal_path(path): mount for path, mount in self._config.mounts.items()}
        for path, mount in configured.items():
            known = remembered.get(path, {}).get("url") == mount.url
            # only for the configuration: other sources may not name files of this host
            options = resolve_options(mount.options)
            await self._attach(path, mount.url, options, check=check, known=known)
            self._index.mounts.put(path, {"url": mount.url, CONFIGURED: "true"})
        for path, record in remembered.items():
            if CONFIGURED not in record and path not in configured:
                await self._attach_remembered(path, record)

    async def _attach_remembered(self, path: str, record: dict[str, str]) -> None:
        options = {key: value for key, value in record.items() if key not in ("url", BY_OPERATOR)}
        try:
            if self._config.cluster or BY_OPERATOR not in record:
                self.allowed.check(record["url"], options)
            await self._attach(path, record["url"], options, check=False, known=True)
        except HeadraceError as error:
            log.warning("a remembered mount could not be attached path=%s error=%s", path, error)

    async def attach_shared(self, path: str, url: str, options: dict[str, str]) -> None:
        """Attach a mount that was added on another node; its origin need not answer now."""
        await self._attach(path, url, options, check=False)
        self._index.mounts.put(path, {"url": url, **options})
        self._invalidate(path)

    async def add(self, path: str, url: str, options: dict[str, str], *, by_operator: bool = False) -> str:
        """Attach a mount on this node, after its origin answered. The index keeps its public options only. Return a
        warning if the origin is empty; "" otherwise."""
        check_places([volume.folder for volume in self._config.cache], [url])
        self._check_exclusive(path)
        has_names = await self._attach(path, url, options, check=True)
        mark = {BY_OPERATOR: "true"} if by_operator else {}
        self._index.mounts.put(path, {"url": url, **public_options(options), **mark})
        self._invalidate(path)
        return (
            "" if has_names else f"{url} is empty or does not exist: look at its name if files are expected"
        )

    def _check_exclusive(self, path: str) -> None:
        """Raise UsageError for a path that an exclusive directory of a running node would not show."""
        for top in map(os.fsdecode, WriteModes.parse(self._config.write).exclusive_tops):
            if f"{top}/".startswith(path.rstrip("/") + "/") or path.startswith(f"{top}/"):
                raise UsageError(
                    f"mount {path}",
                    why=f"the exclusive directory {top} would not show its names",
                    hint="attach it by the configuration, while the node does not run",
                )

    async def remove(self, path: str) -> None:
        """Detach a mount on this node, and close its origin."""
        mount = self._namespace.mount_points.detach(path)
        self._index.mounts.drop(path)
        await self._close(path, mount)

    async def _close(self, path: str, mount: Mount) -> None:
        self._paces.remove(mount.url)
        self._events.remove(path)
        self.traces.remove(path)
        await mount.origin.close()

    async def _attach(
        self, path: str, url: str, options: dict[str, str], *, check: bool, known: bool = False
    ) -> bool:
        """Attach a mount. Return False if a check found no name in its origin."""
        parsed = parse_origin(url)
        check_events(parsed, options)
        pace = OriginPace(parsed)
        origin = build_origin(url, options, pace)
        try:
            if WriteModes.parse(self._config.write).persists_below(os.fsencode(path)) and not origin.writable:
                raise UsageError(
                    f"writing to {url}",
                    why="origins of this type are read-only",
                    hint="use --write off or --write local",
                )
            has_names = await self._checked(origin, url, known=known) if check else True
            trace = await self._trace(path, parsed, options, check=check)
            shown = NamespaceOrigin(origin)
            mount = Mount(path, parsed, shown, self._config.sync_interval_s, origin.circuit)
            try:
                self._namespace.mount_points.attach(mount, known=known)
            except HeadraceError:
                if trace is not None:
                    trace.close()
                raise
        except BaseException:  # also of a caller who is cancelled during the check
            await origin.close()
            raise
        self._paces.add(pace)
        self._events.add(path, parsed, options)
        if trace is not None:
            self.traces.add(path, trace)
        if verifies_opens(options):
            try:
                async for ids in self._namespace.tree.files_below(os.fsencode(path)):
                    doubt(self._index, ids)
            except BaseException:  # of the same caller: no record has a new mount yet
                if not known:
                    await self._close(path, self._namespace.mount_points.detach(path))
                raise
        return has_names

    async def _checked(self, origin: Origin, url: str, *, known: bool) -> bool:
        """Ask an origin that is to be attached. Return False if it has no name. A user waits: an origin that does not
        answer fails at once."""
        limit_s = min(CHECK_LIMIT_S, self._config.origin_timeout_s)
        try:
            return await check_origin(origin, Deadline.after(limit_s, patience_s=0.0))
        except (OriginUnavailableError, DeadlineExceededError, BucketNotFoundError) as error:
            if not (known and self._has_written()):
                raise
            log.warning("the origin is unavailable, dirty files wait for it url=%s error=%s", url, error)
            return True

    async def _trace(self, path: str, url: str, options: dict[str, str], *, check: bool) -> FarTrace | None:
        """Return what asks the cluster behind a mount; None for another origin. check: raise UsageError if it leads
        back to the mount."""
        if not url.startswith(f"{FAR_CLUSTER}://"):
            return None
        trace = FarTrace(url, parse_options(url, options))
        try:
            if check:
                await self.traces.check(path, trace)
        except BaseException:
            trace.close()
            raise
        return trace

    def _invalidate(self, path: str) -> None:
        """Have kernels forget the first name on the path to a mount: they may have cached it as absent."""
        first = path.strip("/").split("/", 1)[0]
        self._subscribers.publish(Invalidated(names=[(1, os.fsencode(first))] if first else []))
