"""Refuse a mount of another cluster that leads back to itself, directly or over others: it would contain itself.

The node that adds a mount asks the far cluster, which asks the clusters behind that path in turn. Any node of the first
cluster recognizes the question by the instance in it.

A node that starts attaches its configured mounts before it serves anybody, so nobody recognizes its questions then. It
asks again during its first minute, and detaches a mount that leads back. A node that runs for longer asks no more: the
mount that was attached last makes the circle, and a cluster elsewhere must not have an older one detached.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, UsageError
from headrace.base.namespace_path import is_at_or_below
from headrace.base.tasks import OwnedTasks
from headrace.namespace.mounts import MountTable
from headrace.origin.far_trace import FarTrace
from headrace.wire.trace_messages import HOPS_MAX, MountTraced, TraceMount

if TYPE_CHECKING:
    from headrace.node.cluster_link import ClusterLink

log = logging.getLogger(__name__)

LIMIT_S = 5.0
HOP_SHARE = 0.7
"""The part of its time that a cluster gives to those behind it, so that its own answer comes in time."""
BRANCHES_MAX = 16
"""Mounts of far clusters that are asked for one question."""
PASSED_ON_MAX = 64
"""Questions of others that a node passes on within LIMIT_S: clusters that mount each other would multiply them."""
AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""The pauses, in seconds, before the mounts of far clusters are checked again after the start."""

Detach = Callable[[str], Awaitable[None]]


class MountTraces:
    """Asks and answers. link: None without a cluster."""

    def __init__(self, mounts: MountTable, link: ClusterLink | None) -> None:
        self._mounts = mounts
        self._link = link
        self._own = secrets.token_hex(8) if link is None else link.info.instance
        self._far: dict[str, FarTrace] = {}
        self._passed_on_s: deque[float] = deque(maxlen=PASSED_ON_MAX)
        self._tasks = OwnedTasks()
        self.handlers: Mapping[type, Any] = {TraceMount: self._answer}

    def start(self, detach: Detach) -> None:
        """Check the present mounts again for a minute, and detach those that lead back."""
        self._tasks.start(self._check_again(list(self._far.items()), detach))

    async def _check_again(self, mounts: list[tuple[str, FarTrace]], detach: Detach) -> None:
        for pause_s in AGAIN_S if mounts else ():
            await asyncio.sleep(pause_s)
            for path, trace in mounts:
                if self._far.get(path) is trace:
                    await self._detach_loop(path, trace, detach)

    async def _detach_loop(self, path: str, trace: FarTrace, detach: Detach) -> None:
        try:
            await self.check(path, trace)
            return
        except UsageError:
            await asyncio.sleep(random.random())  # another cluster of the circle may detach its mount now
        try:
            await self.check(path, trace)
        except UsageError as loop:
            if self._far.get(path) is not trace:
                return
            try:
                await detach(path)
            except HeadraceError as error:
                log.warning("a mount that leads back could not be detached path=%s error=%s", path, error)
                return
            log.warning("a mount was detached error=%s", loop)

    async def check(self, path: str, trace: FarTrace) -> None:
        """Raise UsageError if the origin of a mount leads back to its path. A far cluster that does not say so is
        believed to be another one."""
        try:
            leads_back = await trace.leads_back(
                "", instance=self._own, mount=path, hops=0, deadline=Deadline.after(LIMIT_S, patience_s=0.0)
            )
        except HeadraceError as error:
            log.info("the far cluster does not say where a path leads url=%s error=%s", trace.url, error)
            return
        if leads_back:
            raise UsageError(
                f"mount {path} of {trace.url}",
                why=f"its origin leads back to {path} itself, or over more than {HOPS_MAX} clusters",
                hint="name a path there that does not come from this cluster",
            )

    def add(self, path: str, trace: FarTrace) -> None:
        """Note a mount of a far cluster."""
        self.remove(path)
        self._far[path] = trace

    def remove(self, path: str) -> None:
        trace = self._far.pop(path, None)
        if trace is not None:
            trace.close()

    async def stop(self) -> None:
        await self._tasks.close()
        for path in list(self._far):
            self.remove(path)

    async def _answer(self, request: TraceMount) -> MountTraced:
        path, mount = os.fsdecode(request.path), os.fsdecode(request.mount)
        if request.instance in self._instances() and _overlap(path, mount):
            return MountTraced(leads_back=True)
        behind = self._behind(path)[:BRANCHES_MAX]
        if not behind:
            return MountTraced(leads_back=False)
        if request.hops >= HOPS_MAX:
            return MountTraced(leads_back=True)
        self._check_load()
        limit_s = LIMIT_S * HOP_SHARE ** (request.hops + 1)
        questions = [self._ask(trace, below, request, limit_s) for trace, below in behind]
        return MountTraced(leads_back=any(await asyncio.gather(*questions)))

    def _check_load(self) -> None:
        """Raise UsageError if too many questions were passed on lately."""
        now_s, times = monotonic_s(), self._passed_on_s
        if len(times) == PASSED_ON_MAX and now_s - times[0] < LIMIT_S:
            raise UsageError(
                "the question where a mount leads",
                why=f"more than {PASSED_ON_MAX} such questions came within {LIMIT_S:g} s",
                hint="add the mount again later",
            )
        times.append(now_s)

    async def _ask(self, trace: FarTrace, below: str, request: TraceMount, limit_s: float) -> bool:
        try:
            return await trace.leads_back(
                below,
                instance=request.instance,
                mount=os.fsdecode(request.mount),
                hops=request.hops + 1,
                deadline=Deadline.after(limit_s, patience_s=0.0),
            )
        except HeadraceError as error:
            log.info("a cluster behind does not say where a path leads url=%s error=%s", trace.url, error)
            return False

    def _instances(self) -> Iterable[str]:
        """Return the instances of all nodes of this cluster."""
        others = () if self._link is None else self._link.view().nodes.values()
        return {self._own, *(node.instance for node in others)}

    def _behind(self, path: str) -> list[tuple[FarTrace, str]]:
        """Return the far clusters that answer for a path or for something below it, and the paths below their URLs."""
        behind = []
        answering = self._mounts.find(os.fsencode(path))
        for top, trace in self._far.items():
            if answering is not None and answering[0].path == top:
                behind.append((trace, path[len(top.rstrip("/")) :].rstrip("/")))
            elif top != path and is_at_or_below(top, path):
                behind.append((trace, ""))
        return behind


def _overlap(path: str, other: str) -> bool:
    return is_at_or_below(path, other) or is_at_or_below(other, path)
