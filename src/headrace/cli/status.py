"""Implements `headrace status`: prints the state of a node, and its mounts on this host."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.base.sizes import show_size
from headrace.cli import options
from headrace.cli.render import print_json, print_lines

AWAY_S = 1.0
"""Seconds of failures after which an origin is shown as away."""


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="Path below a mountpoint whose node reports.")
    ] = None,
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print the state of a node: cache, origins, writes, cluster.

    --json prints all fields.
    """
    from headrace.cli.request import connection_to
    from headrace.cli.state import read_states
    from headrace.cli.target import find_target
    from headrace.config.load import load
    from headrace.wire.messages import Report, StatusAsk

    node_socket = find_target(socket, cache, path).socket
    connection = connection_to(node_socket)
    try:
        answer = connection.ask(StatusAsk())
    finally:
        connection.close()
    assert isinstance(answer, Report)
    sessions = [
        {
            "mountpoint": state.mountpoint,
            "io": state.io,
            "why": state.why,
            "pid": state.pid,
            "session_pid": state.session_pid,
        }
        for state in read_states(load().config.run_folder)
        if state.socket == node_socket and state.mountpoint
    ]
    report = {**answer.status, "sessions": sessions}
    if json:
        print_json(report)
        return
    print_lines(_lines(report))


def _lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    node, cache, fill = report["node"], report["cache"], report["fill"]
    share = 100 * cache["used_bytes"] / max(1, cache["capacity_bytes"])
    lines = [
        ("node", f"pid {node['pid']}, up {_duration(node['uptime_s'])}, {node['socket']}"),
        (
            "cache",
            f"{show_size(cache['used_bytes'])} of {show_size(cache['capacity_bytes'])} ({share:.0f} %), "
            f"{report['index']['files']} files",
        ),
        (
            "",
            f"{cache['files_partial']} partial, {cache['files_pinned']} pinned, "
            f"{cache['files_evicted']} evicted since the start",
        ),
    ]
    lines += _volume_lines(cache)
    if cache.get("spilled_bytes"):
        lines.append(
            ("", f"{show_size(cache['spilled_bytes'])} read without caching, as no disk accepts writes")
        )
    for mount in report["mounts"]:
        origin = report["origin"]["mounts"][mount["path"]]
        lines.append(("origin", f"{mount['path']}  {mount['url']}"))
        lines.append(
            (
                "",
                f"{show_size(origin['bytes_read'])} in {origin['requests']} requests, {origin['errors']} errors",
            )
        )
        lines += _away_lines(origin)
    wrong, corrupt = (report["origin"]["checksums"][name] for name in ("files_wrong", "files_corrupt"))
    if wrong or corrupt:
        lines.append(("", f"{wrong} files came with wrong bytes and were read again, {corrupt} stayed wrong"))
    urls = {mount["path"]: mount["url"] for mount in report["mounts"]}
    lines += _event_lines(report.get("events") or {}, urls)
    lines += _policy_lines(report.get("policy") or {})
    lines += _cost_lines(report.get("costs") or {})
    lines += _plan_lines(report.get("plans") or {})
    lines += _prediction_lines(report.get("predictions") or {})
    lines += _scrub_lines(report.get("scrub") or {})
    lines.append(
        ("fills", f"{fill['in_flight']} requests in flight, the window allows {fill['concurrency']:.0f}")
    )
    lines += _write_lines(report.get("write") or {})
    lines += _cluster_lines(report)
    lines += _gateway_lines(report["gateways"])
    lines += _seal_lines(report)
    for session in report["sessions"]:
        lines += [("mount", session["mountpoint"]), ("", f"io {session['io']}, pid {session['pid']}")]
        lines.append(("", session["why"]))
    return lines


def _volume_lines(cache: dict[str, Any]) -> list[tuple[str, str]]:
    volumes = cache.get("volumes", {})
    lines: list[tuple[str, str]] = []
    for folder in cache["disks_full"]:
        lines.append(
            ("", f"the disk of {folder} is full: the node caches nothing new there until space is free")
        )
    for folder in cache.get("disks_failing", ()):
        lines.append(
            ("", f"the disk of {folder} fails or is read-only: the node tries it again later; replace it")
        )
    for folder in cache.get("disks_too_small", ()):
        lines.append(("", f"the disk of {folder} is smaller than its configured capacity"))
    for folder in cache.get("disks_spent", ()):
        lines.append(("", f"{folder} has had its writes of a day: new files go elsewhere, or are not cached"))
    for folder, volume in volumes.items():
        limit = f" of {show_size(volume['writes_a_day'])}" if volume["writes_a_day"] else ""
        written = f"{show_size(volume['written_bytes_day'])}{limit} written within a day"
        size = f"{show_size(volume['used_bytes'])} of {show_size(volume['capacity_bytes'])}"
        lines.append(("volume", f"{folder}  {volume['tier']}, {size}, {written}"))
    moves = cache.get("moves", {})
    if len({volume["tier"] for volume in volumes.values()}) > 1:
        lines.append(
            (
                "",
                f"{moves['files_sunk']} files sank and {moves['files_risen']} rose between the tiers since the start",
            )
        )
    return lines


def _seal_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if report.get("seals_unread"):
        lines.append(("seals", f"not known: {report['seals_unread']}"))
    for seal in report.get("seals", ()):
        missing = f", {seal['missing_files']} of them not cached yet" if seal["missing_files"] else ""
        holds = f"{seal['files']} files, {show_size(seal['size_bytes'])}{missing}"
        damage = f"damaged: {seal['trouble']}" if seal["trouble"] else ""
        lines.append(("seal", f"{seal['seal']}  {damage or holds}"))
        lines += [("", f"mounted at {place}") for place in seal["mounted"]]
    automatic = report.get("seal_auto", ())
    lines += [
        ("sealing", f"{row['path']} is not sealed: {row['why']}; next look {_in(row.get('next_s'))}")
        for row in automatic
        if not row["seal"]
    ]
    if report.get("seal_trouble") and (automatic or report.get("seals")):
        lines.append(("seals", f"none can be mounted: {report['seal_trouble']}"))
    for name in report.get("seals_in_use", ()):
        lines.append(("seal", f"{name} was removed, and is still open in a process or container"))
    return lines


def _away_lines(origin: dict[str, Any]) -> list[tuple[str, str]]:
    if not origin["waiting"] and origin["away_s"] < AWAY_S:
        return []
    line = f"away for {_duration(origin['away_s'])} ({origin['trouble']}), {origin['waiting']} calls wait"
    return [("", f"{line}, next try in {origin['next_try_s']:.1f} s" if origin["waiting"] else line)]


def _event_lines(events: dict[str, Any], urls: dict[str, str]) -> list[tuple[str, str]]:
    """Return a line for each queue and far cluster that this node receives changes from, and one for posts if there
    were any. urls: of the mounts, by their paths."""
    lines = []
    for path, row in events.get("receivers", {}).items():
        is_far = urls.get(path, "").startswith("headrace://")
        source, trouble = ("far cluster", "reports no changes") if is_far else ("queue", "can't be read")
        line = f"{path}: {row['changes']} changes from its {source}"
        if row["since_s"] is not None:
            line += f", the last one {_duration(row['since_s'])} ago"
        lines.append(("events", line))
        if row["error"]:
            lines.append(
                ("", f"the {source} {trouble}: {row['error']}, next try in {row['retry_s'] or 0:.0f} s")
            )
    posts = events.get("posts", {})
    if posts.get("posts"):
        lines.append(
            ("events", f"{posts['changes']} changes in {posts['posts']} posts, {posts['refused']} refused")
        )
    if events.get("directories_failed"):
        lines.append(("", f"{events['directories_failed']} listings of reported directories failed"))
    return lines


def _policy_lines(policy: dict[str, Any]) -> list[tuple[str, str]]:
    if not policy or not policy["version"]:
        return []
    lines = [("policy", f"version {policy['version']}")]
    lines += [("", warning) for warning in policy.get("warnings", ())]
    for name, tenant in policy["tenants"].items():
        line = f"tenant {name} uses {show_size(tenant['used_bytes'])}"
        if tenant["guaranteed_bytes"]:
            line += f", {show_size(tenant['guaranteed_bytes'])} are guaranteed"
        if tenant["limit_bytes"] is not None:
            line += f", its limit is {show_size(tenant['limit_bytes'])}"
        lines.append(("", line))
    for origin in policy["origins"]:
        parts = [
            f"{origin['requests_s']:g} requests/s" if origin["requests_s"] is not None else "",
            f"{show_size(origin['bytes_s'])}/s" if origin["bytes_s"] is not None else "",
        ]
        if any(parts):
            line = f"{origin['url']}: this node may use {', '.join(filter(None, parts))}"
            line += (
                f", slowed to {origin['factor']:.0%} as the origin is overloaded"
                if origin["factor"] < 1
                else ""
            )
            lines.append(("", line))
    return lines


def _cost_lines(costs: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what the origins with a price cost in this month, and what the cache saved."""
    lines: list[tuple[str, str]] = []
    for url, origin in costs.get("origins", {}).items():
        line = f"{url}: {origin['cluster_cost']:.2f} in {costs['month']}"
        if origin["budget_month"] is not None:
            line += f" of {origin['budget_month']:g}"
            line += f", background work is {origin['background']}" if origin["background"] != "free" else ""
        lines.append(("" if lines else "cost", f"{line}, {origin['cost']:.2f} by this node"))
    saved = sum(mount["saved_cost"] for mount in costs.get("mounts", {}).values())
    return [*lines, ("", f"the cache saved about {saved:.2f} since the start")] if lines else []


def _plan_lines(plans: dict[str, Any]) -> list[tuple[str, str]]:
    if not plans or not plans["streams"]:
        return []
    line = f"{plans['streams']} loaders need {show_size(plans['needed_bytes_s'])}/s, "
    line += f"the cache is {_duration(plans['ahead_s_min'])} ahead"
    return [("plans", line), ("", "`headrace plan show` prints each")]


def _prediction_lines(predictions: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for data_set in predictions.get("data_sets", ()):
        if data_set["issued"]:
            line = f"{data_set['path']}: {data_set['right']} of {data_set['issued']} predicted files were opened, "
            line += f"{data_set['wrong']} will not be"
            lines.append(("predicted", f"{line} ({data_set['model'] or 'no model predicts now'})"))
    return lines


def _scrub_lines(scrub: dict[str, Any]) -> list[tuple[str, str]]:
    if not scrub:
        return []
    line = f"{show_size(scrub['bytes_checked'])} in {scrub['files_checked']} files, "
    line += f"{show_size(scrub['bytes_s'])} a second"
    lines = [("scrub", line)]
    if scrub["passes"]:
        lines.append(("", f"the last complete pass ended {scrub['last_pass_ended']}"))
    if scrub["files_damaged"]:
        lines.append(("", f"{scrub['files_damaged']} files damaged, {scrub['files_repaired']} fetched again"))
        lines += [("damaged", path) for path in scrub["last_damaged"]]
    return lines


def _write_lines(write: dict[str, Any]) -> list[tuple[str, str]]:
    if not write:
        return []
    backlog = f"{write['dirty']} names, {show_size(write['dirty_bytes'])} not yet persisted"
    if write["dirty"]:
        backlog += f", the oldest for {_duration(write['oldest_s'])}"
    lines = [("writes", f"{write['mode']}; {backlog}")]
    if write["throttle_pause_s"]:
        lines.append(
            (
                "",
                f"uploads are behind: writers are delayed by {write['throttle_pause_s']:.2f} s for each file",
            )
        )
    lines += [
        ("claim", f"{claim['path']}: {claim['trouble']}")
        for claim in write.get("claims", ())
        if claim["trouble"]
    ]
    if "copies_on" in write:
        lines.append(
            ("copies", f"on {', '.join(write['copies_on']) or 'no other node: writers wait for the origin'}")
        )
    lines += [("failed", f"{path}: {error}") for path, error in write["errors"]]
    for conflict in write["conflicts"]:
        outcome = f"this node's version is {conflict['kept']}" if conflict["kept"] else "it was not removed"
        lines.append(("conflict", f"{conflict['path']}: {conflict['why']}; {outcome}"))
    return lines


def _gateway_lines(gateways: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the lines of each gateway, with its eight most frequent operations."""
    lines = []
    for gateway in gateways:
        lines.append((gateway["kind"], f"{gateway['address']}, pid {gateway['pid']}"))
        rows = sorted(gateway["operations"].items(), key=lambda row: -row[1]["requests"])
        for operation, row in rows[:8]:
            lines.append(
                (
                    "",
                    f"{operation}: {row['requests']} requests, {show_size(row['bytes_in'])} in, "
                    f"{show_size(row['bytes_out'])} out, {row['refused']} refused, {row['failed']} failed",
                )
            )
    return lines


def _cluster_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    cluster, peers, rebalance = report["cluster"], report["peers"], report["rebalance"]
    if not cluster:
        return []
    lines = [("cluster", f"{cluster['name']}, this is {cluster['node']} at {cluster['address']}")]
    if cluster["taking_over"]:
        lines.append(
            ("", f"failover: persists the files of {', '.join(cluster['taking_over'])}, out of the cluster")
        )
    trouble = cluster["membership"].get("trouble", "")
    lines.append(("", trouble or f"epoch {cluster['epoch']}, {len(cluster['members'])} nodes"))
    for member in cluster["members"]:
        state = ", draining" if member["draining"] else ""
        zone = f", zone {member['zone']}" if member["zone"] else ""
        capacity = show_size(member["capacity_bytes"])
        lines.append(("", f"{member['id']}  {member['address']}, {capacity}{zone}{state}"))
        trouble = cluster["peers"].get(member["id"], {}).get("trouble", "")
        if trouble:
            lines.append(("", f"    not answering: {trouble}"))
    lines.append(
        (
            "peers",
            f"{show_size(peers['bytes_read'])} in {peers['reads']} reads, {peers['reads_failed']} failed; "
            f"{show_size(report['cache']['borrowed_bytes'])} borrowed",
        )
    )
    if rebalance:
        state = "running" if rebalance["running"] else "none running"
        size = show_size(rebalance["bytes_handed_over"])
        lines.append(("moves", f"{state}; {rebalance['files_handed_over']} files, {size} handed over"))
    lines += _copies_lines(report["copies"])
    return lines


def _copies_lines(copies: dict[str, int]) -> list[tuple[str, str]]:
    if not any(copies.values()):
        return []
    lines = [
        (
            "copies",
            f"{copies['copies_made']} made, {show_size(copies['bytes_made'])}; "
            f"{copies['copies_dropped']} dropped; {copies['files_waiting']} files wait",
        )
    ]
    if copies["hot_segments"]:
        size = show_size(copies["hot_bytes"])
        lines.append(("", f"{copies['hot_segments']} hot, with {copies['hot_copies']} copies, {size}"))
    return lines


def _in(seconds: float | None) -> str:
    return f"in {_duration(seconds)}" if seconds else "soon"


def _duration(seconds: float) -> str:
    seconds = int(seconds)
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} days"
