"""Export the counts of `headrace status --json` for Prometheus (text format 0.0.4), and declare all metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """Declares a metric. `where` is the path of keys in the status, outermost first; a missing value is left out. With
    `each` the value is a map with one row for each key, `label` names the keys, and `each` is the number's key."""

    name: str
    kind: str
    text: str
    where: tuple[str, ...]
    each: str = ""
    label: str = ""


METRICS = (
    Metric("headrace_uptime_seconds", GAUGE, "Seconds since the node started.", ("node", "uptime_s")),
    Metric(
        "headrace_cache_capacity_bytes",
        GAUGE,
        "Capacity of all cache directories.",
        ("cache", "capacity_bytes"),
    ),
    Metric(
        "headrace_cache_used_bytes",
        GAUGE,
        "Disk space used by cache files and their block maps.",
        ("cache", "used_bytes"),
    ),
    Metric(
        "headrace_cache_borrowed_bytes",
        GAUGE,
        "Cached bytes of files that other nodes own.",
        ("cache", "borrowed_bytes"),
    ),
    Metric("headrace_cache_files", GAUGE, "Cached files.", ("index", "files")),
    Metric(
        "headrace_cache_files_partial",
        GAUGE,
        "Cached files that are not complete.",
        ("cache", "files_partial"),
    ),
    Metric(
        "headrace_cache_files_pinned",
        GAUGE,
        "Cached files that are never evicted.",
        ("cache", "files_pinned"),
    ),
    Metric(
        "headrace_cache_files_evicted_total",
        COUNTER,
        "Files evicted to make room since the node started.",
        ("cache", "files_evicted"),
    ),
    *(
        Metric(f"headrace_volume_{name}", kind, text, ("cache", "volumes"), key, "volume")
        for name, kind, key, text in (
            ("capacity_bytes", GAUGE, "capacity_bytes", "Capacity of a cache volume."),
            ("used_bytes", GAUGE, "used_bytes", "Disk space that a cache volume uses."),
            (
                "written_bytes_total",
                COUNTER,
                "written_bytes",
                "Bytes written to a cache volume since its first use.",
            ),
            (
                "written_bytes_day",
                GAUGE,
                "written_bytes_day",
                "Bytes written to a cache volume within the last day.",
            ),
            (
                "failures_total",
                COUNTER,
                "failures",
                "Changes that the disk of a cache volume refused since the node started, other than for want of space.",
            ),
        )
    ),
    Metric(
        "headrace_tier_files_sunk_total",
        COUNTER,
        "Files that were moved to a slower tier as they cooled.",
        ("cache", "moves", "files_sunk"),
    ),
    Metric(
        "headrace_tier_files_risen_total",
        COUNTER,
        "Files that were moved to a faster tier as they were used again.",
        ("cache", "moves", "files_risen"),
    ),
    Metric(
        "headrace_tier_bytes_moved_total",
        COUNTER,
        "Bytes that were moved between the tiers.",
        ("cache", "moves", "bytes_moved"),
    ),
    Metric("headrace_index_entries", GAUGE, "Names in the index.", ("index", "entries")),
    Metric("headrace_index_bytes", GAUGE, "Size of the index.", ("index", "bytes")),
    Metric(
        "headrace_origin_requests_total",
        COUNTER,
        "Requests to the origin of a mount; a request and its retries count as one.",
        ("origin", "mounts"),
        "requests",
        "mount",
    ),
    Metric(
        "headrace_origin_errors_total",
        COUNTER,
        "Requests to the origin of a mount that failed. That an object does not exist, or was changed, is no failure.",
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
        "Bytes written to the origin of a mount.",
        ("origin", "mounts"),
        "bytes_written",
        "mount",
    ),
    Metric(
        "headrace_origin_away_seconds",
        GAUGE,
        "Seconds for which every request to the origin of a mount has failed; 0 if the last one succeeded.",
        ("origin", "mounts"),
        "away_s",
        "mount",
    ),
    Metric(
        "headrace_origin_waiting",
        GAUGE,
        "Requests that wait until the origin of a mount is available again.",
        ("origin", "mounts"),
        "waiting",
        "mount",
    ),
    Metric(
        "headrace_origin_reads_hedged_total",
        COUNTER,
        "Reads of the origin of a mount that were repeated because no byte arrived in time.",
        ("origin", "mounts"),
        "reads_hedged",
        "mount",
    ),
    *(
        Metric(f"headrace_cost_{label}_{name}_total", COUNTER, text, ("costs", f"{label}s"), field, label)
        for label, of in (("mount", "a mount"), ("tenant", "a tenant"), ("job", "a job"))
        for name, field, text in (
            ("requests", "requests", f"Range reads at origins for {of}."),
            ("bytes", "bytes", f"Bytes read from origins for {of}."),
            (
                "price",
                "cost",
                f"Price of the bytes read from origins for {of}, in the currency of the policy.",
            ),
        )
    ),
    *(
        Metric(
            f"headrace_cost_{label}_saved_{name}_total",
            COUNTER,
            f"{text} that files of {of} had cost without the cache, an estimate.",
            ("costs", f"{label}s"),
            f"saved_{field}",
            label,
        )
        for label, of in (("mount", "a mount"), ("tenant", "a tenant"))
        for name, field, text in (("bytes", "bytes", "Bytes"), ("price", "cost", "Price"))
    ),
    Metric(
        "headrace_cost_month",
        GAUGE,
        "Price of what all nodes read from an origin in this month.",
        ("costs", "origins"),
        "cluster_cost",
        "origin",
    ),
    Metric(
        "headrace_cost_month_budget",
        GAUGE,
        "Budget of an origin in a month (budget_month).",
        ("costs", "origins"),
        "budget_month",
        "origin",
    ),
    Metric(
        "headrace_origin_files_compared_total",
        COUNTER,
        "Files that were compared with the checksum that their origin has, and match.",
        ("origin", "checksums", "files_compared"),
    ),
    Metric(
        "headrace_origin_files_wrong_total",
        COUNTER,
        "Files for which an origin first sent wrong bytes.",
        ("origin", "checksums", "files_wrong"),
    ),
    Metric(
        "headrace_origin_files_corrupt_total",
        COUNTER,
        "Files whose origin kept sending wrong bytes.",
        ("origin", "checksums", "files_corrupt"),
    ),
    Metric(
        "headrace_events_posted_changes_total",
        COUNTER,
        "Changes that origins posted to the REST API.",
        ("events", "posts", "changes"),
    ),
    Metric(
        "headrace_events_queued_changes_total",
        COUNTER,
        "Changes that this node received from the queue of a mount.",
        ("events", "receivers"),
        "changes",
        "mount",
    ),
    Metric(
        "headrace_events_receive_errors_total",
        COUNTER,
        "Failures to receive from the queue of a mount, or to handle what came.",
        ("events", "receivers"),
        "errors",
        "mount",
    ),
    Metric(
        "headrace_events_lag_seconds",
        GAUGE,
        "Seconds from the last change at the origin of a mount to its arrival.",
        ("events", "receivers"),
        "lag_s",
        "mount",
    ),
    Metric(
        "headrace_events_names_checked_total",
        COUNTER,
        "Names that were looked up because origins reported a change.",
        ("events", "names_checked"),
    ),
    Metric(
        "headrace_events_directories_waiting",
        GAUGE,
        "Reported directories that wait for a listing.",
        ("events", "directories_waiting"),
    ),
    Metric(
        "headrace_events_directories_listed_total",
        COUNTER,
        "Listings of directories that origins reported as changed.",
        ("events", "directories_listed"),
    ),
    Metric(
        "headrace_expired_files_total",
        COUNTER,
        "Cached files that were removed because their time to live was over.",
        ("expiry", "files_expired"),
    ),
    Metric(
        "headrace_expired_bytes_total",
        COUNTER,
        "Bytes of cached files that were removed because their time to live was over.",
        ("expiry", "bytes_expired"),
    ),
    Metric(
        "headrace_scrub_checked_bytes",
        GAUGE,
        "Cached bytes that the current or the last scrub compared with their checksums.",
        ("scrub", "bytes_checked"),
    ),
    Metric(
        "headrace_scrub_passes_total",
        COUNTER,
        "Completed scrubs of the whole cache.",
        ("scrub", "passes"),
    ),
    Metric(
        "headrace_scrub_damaged_files_total",
        COUNTER,
        "Cached files that no longer matched their checksums.",
        ("scrub", "files_damaged"),
    ),
    Metric(
        "headrace_scrub_repaired_files_total",
        COUNTER,
        "Damaged cached files that were fetched again.",
        ("scrub", "files_repaired"),
    ),
    Metric("headrace_plan_streams", GAUGE, "Loaders whose order of reads is known.", ("plans", "streams")),
    Metric(
        "headrace_plan_needed_bytes_per_second",
        GAUGE,
        "Rate at which planned jobs read.",
        ("plans", "needed_bytes_s"),
    ),
    Metric(
        "headrace_plan_ahead_seconds_min",
        GAUGE,
        "Seconds of training whose files are all cached, of the job that has least.",
        ("plans", "ahead_s_min"),
    ),
    Metric(
        "headrace_plan_fetched_bytes_total",
        COUNTER,
        "Bytes that were fetched for plans, before they were read.",
        ("plans", "bytes_fetched"),
    ),
    Metric(
        "headrace_plan_failed_files_total",
        COUNTER,
        "Planned files that could not be fetched.",
        ("plans", "files_failed"),
    ),
    Metric(
        "headrace_plan_samples_hit_total",
        COUNTER,
        "Samples of plans whose files were cached in time.",
        ("plans", "samples_hit"),
    ),
    Metric(
        "headrace_plan_samples_missed_total",
        COUNTER,
        "Samples of plans whose files were not cached in time.",
        ("plans", "samples_missed"),
    ),
    Metric(
        "headrace_prediction_fetched_bytes_total",
        COUNTER,
        "Bytes that were fetched for jobs without a plan, before they were read.",
        ("predictions", "bytes_fetched"),
    ),
    Metric(
        "headrace_prediction_right_bytes_total",
        COUNTER,
        "Predicted bytes whose files were opened later.",
        ("predictions", "bytes_right"),
    ),
    Metric(
        "headrace_prediction_wrong_bytes_total",
        COUNTER,
        "Predicted bytes whose files were given up.",
        ("predictions", "bytes_wrong"),
    ),
    Metric("headrace_fills_in_flight", GAUGE, "Range reads in progress.", ("fill", "in_flight")),
    Metric(
        "headrace_fills_in_flight_max",
        GAUGE,
        "Range reads that the window allows now.",
        ("fill", "concurrency"),
    ),
    Metric("headrace_peer_reads_total", COUNTER, "Reads from other nodes.", ("peers", "reads")),
    Metric(
        "headrace_peer_reads_failed_total",
        COUNTER,
        "Reads from other nodes that failed.",
        ("peers", "reads_failed"),
    ),
    Metric("headrace_peer_read_bytes_total", COUNTER, "Bytes from other nodes.", ("peers", "bytes_read")),
    Metric("headrace_unpersisted_names", GAUGE, "Names that are not persisted yet.", ("write", "dirty")),
    Metric(
        "headrace_unpersisted_bytes", GAUGE, "Bytes that are not persisted yet.", ("write", "dirty_bytes")
    ),
    Metric(
        "headrace_unpersisted_oldest_seconds",
        GAUGE,
        "Age of the oldest name that is not persisted yet.",
        ("write", "oldest_s"),
    ),
    Metric(
        "headrace_writers_slowed_seconds",
        GAUGE,
        "Delay of writers while persisting is behind.",
        ("write", "throttle_pause_s"),
    ),
    Metric(
        "headrace_cluster_epoch", GAUGE, "Epoch of this node's view of the cluster.", ("cluster", "epoch")
    ),
    Metric(
        "headrace_rebalance_handed_over_bytes_total",
        COUNTER,
        "Bytes handed over to new owners.",
        ("rebalance", "bytes_handed_over"),
    ),
    Metric(
        "headrace_copies_made_bytes_total",
        COUNTER,
        "Bytes of copies that this node gave to other owners.",
        ("copies", "bytes_made"),
    ),
    Metric(
        "headrace_copies_dropped_bytes_total",
        COUNTER,
        "Bytes of copies that this node deleted because the policy wants fewer.",
        ("copies", "bytes_dropped"),
    ),
    Metric(
        "headrace_copies_hot_bytes",
        GAUGE,
        "Bytes of the copies of this node's hot segments on other nodes.",
        ("copies", "hot_bytes"),
    ),
)


def page(status: Mapping[str, Any]) -> str:
    """Return the page of metrics for the node's status. A node without a cluster has no metrics of one."""
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
    selected: Any = status
    for key in metric.where:
        selected = selected.get(key) if isinstance(selected, Mapping) else None
    if not metric.each:
        if isinstance(selected, (int, float)):
            yield "", selected
        return
    for key, row in (selected or {}).items():
        value = row.get(metric.each)
        if isinstance(value, (int, float)):
            yield f'{{{metric.label}="{_escaped(key)}"}}', value


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
