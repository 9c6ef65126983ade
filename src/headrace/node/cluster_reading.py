"""Build the parts that read from other nodes: their cached bytes and their listings precede the origin's."""

from __future__ import annotations

from headrace.config.schema import Config
from headrace.dataplane.cluster_source import ClusterSourceFactory, PendingFiles
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.peer_reader import PeerReader
from headrace.dataplane.source import ReadAccounts
from headrace.namespace.owner_listing import OwnerListingClient
from headrace.node.cluster_link import ClusterLink

PEER_READS_MAX = 256
"""Reads at once from all peers. The peers' servers and the network limit them in practice; the gate limits the
bytes."""
BACKGROUND_SHARE = 0.5
"""The share of these reads, and of their bytes, for loads and plans. Their owners let them wait behind readers."""
LISTING_LIMIT_FACTOR = 10


def build_sources(
    config: Config, link: ClusterLink, gate: Gate, accounts: ReadAccounts
) -> ClusterSourceFactory:
    """Build the sources of files. gate: limits the reads from origins. accounts: of these reads."""
    window = Window(maximum=PEER_READS_MAX, start=PEER_READS_MAX)
    dirty = link.dirty
    return ClusterSourceFactory(
        gate,
        timeout_s=config.origin_timeout_s,
        reader=PeerReader(
            link.info.id,
            link.peers,
            Gate(window, bytes_max=config.fill_bytes_max, background_share=BACKGROUND_SHARE),
            view=link.view,
            ownership=link.copies.ownership,
            timeout_s=config.origin_timeout_s,
            small_bytes_max=config.small_file_bytes_max,
        ),
        pending=PendingFiles(dirty.elsewhere.sources, dirty.files.read, dirty.resolve_version),
        accounts=accounts,
    )


def build_owner_listing(config: Config, link: ClusterLink) -> OwnerListingClient:
    return OwnerListingClient(
        link.info.id,
        link.peers,
        view=link.view,
        replicas=link.copies.configured,
        timeout_s=config.origin_timeout_s * LISTING_LIMIT_FACTOR,
    )
