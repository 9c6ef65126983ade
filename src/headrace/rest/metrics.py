"""What `headrace status --json` counts, as Prometheus reads it (text format 0.0.4). All of it is declared here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """where: keys of the status, outermost first; what is not there is left out. each: the value there is a map, one
    row a key, and the number is below this key of it; label: what its keys are called."""

    name: str
    kind: str
    text: str
    where: tuple[str, ...]
    each: str = ""
    label: str = ""


METRICS = (
    Metric("headrace_uptime_seconds", GAUGE, "Since the node was started.", ("node", "uptime_s")),
    Metric("headrace_cache_capacity_bytes", GAUGE, "Of all cache folders.", ("cache", "capacity_bytes")),
    Metric("headrace_cache_used_bytes", GAUGE, "On the disk for files and maps.", ("cache", "used_bytes")),
    Metric(
        "headrace_cache_borrowed_bytes", GAUGE, "Of files that other nodes own.", ("cache", "borrowed_bytes")
    ),
    Metric("headrace_cache_files", GAUGE, "Cached files.", ("index", "files")),
    Metric("headrace_cache_files_partial", GAUGE, "Files that are not whole.", ("cache", "files_partial")),
    Metric("headrace_cache_files_pinned", GAUGE, "Files that are never dropped.", ("cache", "files_pinned")),
    Metric(
        "headrace_cache_files_evicted_total",
        COUNTER,
        "Files dropped for space since the start.",
        ("cache", "files_evicted"),
    ),
    Metric("headrace_index_entries", GAUGE, "Names in the index.", ("index", "entries")),
    Metric("headrace_index_bytes", GAUGE, "Size of the index.", ("index", "bytes")),
    Metric(
        "headrace_origin_requests_total",
        COUNTER,
        "Requests to the origin of a mount; attempts of a retry count as one.",
        ("origin", "mounts"),
        "requests",
        "mount",
    ),
    Metric(
        "headrace_origin_errors_total",
        COUNTER,
        "Requests to the origin of a mount that failed.",
        ("origin", "mounts"),
        "errors",
        "mount",
    ),
    Metric(
        "headrace_origin_read_bytes_total",
        COUNTER,
        "Bytes read from the origin of a mount.",
        ("origin", "mounts"),
        "bytes_read",
        "mount",
    ),
    Metric(
        "headrace_origin_written_bytes_total",
        COUNTER,
        "Bytes put to the origin of a mount.",
        ("origin", "mounts"),
        "bytes_written",
        "mount",
    ),
    Metric(
        "headrace_origin_away_seconds",
        GAUGE,
        "For how long every request to the origin of a mount has failed; 0 when the last one did not.",
        ("origin", "mounts"),
        "away_s",
        "mount",
    ),
    Metric(
        "headrace_origin_waiting",
        GAUGE,
        "Requests that wait for the origin of a mount to be back.",
        ("origin", "mounts"),
        "waiting",
        "mount",
    ),
    Metric(
        "headrace_origin_reads_hedged_total",
        COUNTER,
        "Reads of the origin of a mount that were silent and asked for again.",
        ("origin", "mounts"),
        "reads_hedged",
        "mount",
    ),
    Metric(
        "headrace_origin_files_compared_total",
        COUNTER,
        "Files that match the checksum that their origin names.",
        ("origin", "checksums", "files_compared"),
    ),
    Metric(
        "headrace_origin_files_wrong_total",
        COUNTER,
        "Files of which an origin sent wrong bytes at first.",
        ("origin", "checksums", "files_wrong"),
    ),
    Metric(
        "headrace_origin_files_corrupt_total",
        COUNTER,
        "Files that could not be had right from their origin.",
        ("origin", "checksums", "files_corrupt"),
    ),
    Metric(
        "headrace_scrub_checked_bytes",
        GAUGE,
        "Cached bytes that the pass under way, or the last one, compared with their checksums.",
        ("scrub", "bytes_checked"),
    ),
    Metric(
        "headrace_scrub_passes_total",
        COUNTER,
        "Times that all of the cache was compared.",
        ("scrub", "passes"),
    ),
    Metric(
        "headrace_scrub_damaged_files_total",
        COUNTER,
        "Cached files that did not match their checksums any more.",
        ("scrub", "files_damaged"),
    ),
    Metric(
        "headrace_scrub_repaired_files_total",
        COUNTER,
        "As many of them as were fetched again.",
        ("scrub", "files_repaired"),
    ),
    Metric("headrace_fills_in_flight", GAUGE, "Range reads under way.", ("fill", "in_flight")),
    Metric(
        "headrace_fills_in_flight_max", GAUGE, "As many as the window allows now.", ("fill", "concurrency")
    ),
    Metric("headrace_peer_reads_total", COUNTER, "Reads from other nodes.", ("peers", "reads")),
    Metric(
        "headrace_peer_reads_failed_total",
        COUNTER,
        "Reads from other nodes that failed.",
        ("peers", "reads_failed"),
    ),
    Metric("headrace_peer_read_bytes_total", COUNTER, "Bytes from other nodes.", ("peers", "bytes_read")),
    Metric("headrace_unpersisted_names", GAUGE, "Names that the origin has not yet.", ("write", "dirty")),
    Metric(
        "headrace_unpersisted_bytes", GAUGE, "Bytes that the origin has not yet.", ("write", "dirty_bytes")
    ),
    Metric(
        "headrace_unpersisted_oldest_seconds",
        GAUGE,
        "For how long the oldest of them has waited.",
        ("write", "oldest_s"),
    ),
    Metric(
        "headrace_writers_slowed_seconds",
        GAUGE,
        "What makers of files wait, as persisting is behind.",
        ("write", "slowed_s"),
    ),
    Metric("headrace_cluster_epoch", GAUGE, "Of this node's view of the cluster.", ("cluster", "epoch")),
    Metric(
        "headrace_rebalance_handed_over_bytes_total",
        COUNTER,
        "Bytes handed to new owners.",
        ("rebalance", "bytes_handed_over"),
    ),
)


def page(status: Mapping[str, Any]) -> str:
    """status: of the node. Those of a cluster are left out of a node that is alone."""
    lines = []
    for metric in METRICS:
        rows = list(_rows(metric, status))
        if rows:
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{labels} {value}" for labels, value in rows]
    members = status.get("cluster", {}).get("members")
    if members is not None:
        name = "headrace_cluster_members"
        lines += [f"# HELP {name} Nodes in the cluster.", f"# TYPE {name} gauge", f"{name} {len(members)}"]
    return "\n".join(lines) + "\n"


def _rows(metric: Metric, status: Mapping[str, Any]) -> Iterator[tuple[str, int | float]]:
    found: Any = status
    for key in metric.where:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not metric.each:
        if isinstance(found, (int, float)):
            yield "", found
        return
    for key, one in (found or {}).items():
        value = one.get(metric.each)
        if isinstance(value, (int, float)):
            yield f'{{{metric.label}="{_escaped(key)}"}}', value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
