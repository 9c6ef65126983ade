"""Implements `headrace plan show`: what training jobs read next, and how far the cache is ahead of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.base.sizes import show_size
from headrace.cli import options
from headrace.cli.render import print_json, print_rows, say

if TYPE_CHECKING:
    from headrace.wire.plan_answers import PlanRow

BAR_WIDTH = 20


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show the plans of training jobs.", no_args_is_help=True)
    group.command("show")(show)
    app.add_typer(group, name="plan")


def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of one job.", show_default="all jobs")] = "",
    socket: options.Socket = None,
    cache: options.CacheOf = None,
    json: options.Json = False,
) -> None:
    """Print where planned jobs are, and how far the cache is ahead."""
    import msgspec

    from headrace.cli.request import ask
    from headrace.wire.messages import PlanList
    from headrace.wire.plan_answers import PlanRows

    answer = ask(PlanList(), socket, cache)
    assert isinstance(answer, PlanRows)
    rows = [row for row in answer.rows if job in ("", row.job)]
    if json:
        print_json([{**msgspec.to_builtins(row), **_estimates(row)} for row in rows])
    elif rows:
        print_rows(
            [_columns(row) for row in rows],
            as_json=False,
            right=("step", "needed", "fetched", "ahead", "hits"),
        )
        if job:
            for line in _estimate_lines(rows[0]):
                say(line)
    elif job and answer.rows:
        say(f"job {job} reports no plan; `headrace plan show` prints those that do")
    else:
        say("no job reports a plan, and no reads are predicted; start a job with `headrace run -- COMMAND`")


def _columns(row: PlanRow) -> dict[str, str]:
    hits, utilization = _estimates(row)["hit_share"], _estimates(row)["utilization"]
    return {
        "job": row.job if row.world == 1 else f"{row.job} {row.rank}/{row.world}",
        "state": row.state,
        "epoch": f"{row.epoch}",
        "position": f"{_bar(row)} {row.position}/{row.samples or '?'}",
        "step": f"{row.step_s:.3f} s" if row.step_s else "",
        "needed": f"{show_size(row.needed_bytes_s)}/s" if row.needed_bytes_s else "",
        "fetched": f"{show_size(row.fetched_bytes_s)}/s" if row.stream else "",
        "ahead": f"{row.ahead_s:.0f} s" if row.stream else "",
        "hits": _hits_text(row, hits),
        "AU": "" if utilization is None else f"{utilization:.0%}",
    }


def _estimates(row: PlanRow) -> dict[str, float | None]:
    """Return the share of the epoch's samples that were cached in time, and the accelerator utilization that the
    fetched rate allows where the cache is not ahead."""
    taken = row.hits + row.misses
    utilization = None
    if row.needed_bytes_s and row.step_s:
        is_ahead = row.ahead_s >= row.step_s * 8 or row.position + row.ahead_samples >= row.samples
        utilization = 1.0 if is_ahead else min(1.0, row.fetched_bytes_s / row.needed_bytes_s)
    return {"hit_share": row.hits / taken if taken else None, "utilization": utilization}


def _estimate_lines(row: PlanRow) -> list[str]:
    """Return what more cache and more bandwidth would give all planned jobs of the node."""
    lines = ["", "estimate for all plans of this node:"] if row.estimates else []
    for estimate in row.estimates:
        supply = "as it is"
        if estimate.cache_factor != 1:
            supply = f"{estimate.cache_factor:g} times the cache"
        elif estimate.bandwidth_factor != 1:
            supply = f"{estimate.bandwidth_factor:g} times the bandwidth"
        utilization = "unknown" if estimate.utilization is None else f"{estimate.utilization:.0%}"
        lines.append(f"  {supply}: {estimate.hit_share:.0%} hits, AU {utilization}")
    return lines


def _hits_text(row: PlanRow, hits: float | None) -> str:
    """Return the share of hits of a plan, or of the predictions that came true."""
    if row.model or row.issued:
        return f"{row.right}/{row.right + row.wrong} {row.model}"
    return "" if hits is None else f"{hits:.1%}"


def _bar(row: PlanRow) -> str:
    """Return the position in the epoch, and what is cached from there on, as a bar."""
    if not row.samples:
        return "·" * BAR_WIDTH
    done = min(BAR_WIDTH, BAR_WIDTH * row.position // row.samples)
    ahead = min(BAR_WIDTH - done, BAR_WIDTH * row.ahead_samples // row.samples)
    return "█" * done + "▒" * ahead + "·" * (BAR_WIDTH - done - ahead)
