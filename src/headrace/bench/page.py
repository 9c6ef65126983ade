"""Show a run of `headrace bench training` or `checkpoint` as one page of text."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.base.sizes import show_size
from headrace.bench.workloads import VERSIONS

if TYPE_CHECKING:
    from headrace.bench.checkpoints import CheckpointResult
    from headrace.bench.training import TrainingResult


def training_page(result: TrainingResult) -> str:
    mode = "in another order each epoch" if result.shuffle else "in a fixed order"
    lines = [
        f"{result.called}: {result.workload} ({', '.join(filter(None, (result.version, result.format)))}), "
        f"{result.where}",
        f"{result.accelerators} simulated {result.accelerator.upper()} on {_many(result.hosts, 'host')}, "
        f"{result.readers} readers each ({result.loader}), batch {result.batch}, "
        f"{result.compute_s * 1e3:.4g} ms of compute a step",
        f"{result.samples} samples in {_many(result.files, 'file')}, {show_size(result.dataset_bytes)}, {mode}; "
        f"page cache {result.page_cache}",
        "",
    ]
    head = (
        "epoch",
        "AU %",
        "samples/s",
        "MiB/s",
        "first batch s",
        "compute ms",
        "wait p50 ms",
        "wait p99 ms",
        "CPU s/GiB",
        "failed",
    )
    rows = [
        (
            str(epoch.epoch),
            f"{100 * epoch.au:.2f}",
            f"{epoch.samples_s:.1f}",
            f"{epoch.bytes_s / 2**20:.1f}",
            f"{epoch.first_batch_s:.3f}",
            f"{epoch.compute_s * 1e3:.2f}",
            f"{epoch.load_p50_s * 1e3:.2f}",
            f"{epoch.load_p99_s * 1e3:.2f}",
            f"{epoch.processor_s / (epoch.bytes_read / 2**30):.2f}" if epoch.bytes_read else "-",
            str(epoch.failed),
        )
        for epoch in result.epochs
    ]
    lines += table(head, rows)
    aus = [100 * epoch.au for epoch in result.epochs]
    word = "passed" if result.passed else "not passed"
    needed = f"{100 * result.au_needed:.0f} % needed"
    lines += ["", f"AU {100 * result.au:.2f} % (epochs {min(aus):.2f} to {max(aus):.2f}), {needed}: {word}"]
    if result.failed:
        lines.append(f"{result.failed} reads failed")
    lines += ["", f"Rules of MLPerf Storage {result.version or VERSIONS[-1]}, and ours:"]
    for rule in result.rules:
        line = f"  kept    {rule.text}: {rule.measured}"
        lines.append(line if rule.kept else f"  BROKEN  {rule.text}: {rule.measured}, {rule.needed} needed")
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes), "", made_on()])


def checkpoint_page(result: CheckpointResult) -> str:
    lines = [
        f"{result.called}: {result.model}, {result.mode}, {result.folder}",
        f"{result.ranks} of {result.ranks_of_model} ranks, {_many(result.files, 'file')}, "
        f"{show_size(result.checkpoint_bytes)} a checkpoint (of {show_size(result.full_bytes)} at scale 1), "
        f"sizes times {result.scale:g}; page cache {result.page_cache}",
        "",
    ]
    head = ("", "n", "GiB/s, slowest rank", "seconds", "least", "most")
    rows = []
    for name, turns in (("write", result.writes), ("read", result.reads)):
        if turns:
            rates = sorted(turn.bytes_s / 2**30 for turn in turns)
            shown = (_middle(rates), _middle([turn.took_s for turn in turns]), rates[0], rates[-1])
            rows.append((name, str(len(turns)), *(f"{value:.3f}" for value in shown)))
    lines += table(head, rows)
    return "\n".join([*lines, *(f"note: {note}" for note in result.notes), "", made_on()])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table. All columns except the first are aligned right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(
            word.ljust(width) if column == 0 else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def made_on() -> str:
    from headrace import __version__

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"headrace {__version__}, {time.strftime('%Y-%m-%d %H:%M')}, Linux {platform.release()}, "
        f"{os.cpu_count()} processors, {memory / 2**30:.0f} GiB of memory"
    )
