"""Keep a batcher for each peer and kind of request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container

from headrace.peer.batch import Batcher, Waiting
from headrace.peer.connection_pool import Peer
from headrace.wire.peer_messages import Fetch

SendBatch = Callable[[Peer, Fetch, list[Waiting]], Awaitable[None]]


class Batchers:
    """Hold the batchers of all peers. send: sends a batch to a peer; the Fetch has what all its files have in
    common."""

    def __init__(self, send: SendBatch) -> None:
        self._send = send
        self._batchers: dict[tuple[str, bool, bool], tuple[Peer, Batcher]] = {}

    def __len__(self) -> int:
        return len(self._batchers)

    def of(self, peer: Peer, *, cached_only: bool, background: bool) -> Batcher:
        """Return the batcher of requests of one kind. A peer that restarted gets a new one."""
        key = peer.id, cached_only, background
        known, batcher = self._batchers.get(key, (None, None))
        if batcher is None or known is not peer:
            request = Fetch([], cached_only=cached_only, epoch=0, background=background)
            batcher = Batcher(lambda batch: self._send(peer, request, batch))
            self._batchers[key] = peer, batcher
        return batcher

    def forget(self, peers: Container[str]) -> None:
        """Forget peers that are gone, by their ids."""
        for key in [key for key in self._batchers if key[0] in peers]:
            del self._batchers[key]
