"""A run of `headrace bench training` or `checkpoint` as one page of text."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.config.sizes import show_size

if TYPE_CHECKING:
    from headrace.bench.checkpoints import CheckpointResult
    from headrace.bench.training import TrainingResult


def training_page(one: TrainingResult) -> str:
    mode = "in another order each epoch" if one.shuffle else "in a fixed order"
    lines = [
        f"{one.called}: {one.workload} ({one.format}), {one.where}",
        f"{one.accelerators} simulated {one.accelerator.upper()} on {_many(one.hosts, 'host')}, "
        f"{one.readers} readers each ({one.loader}), batch {one.batch}, {one.compute_s * 1e3:.4g} ms of compute a step",
        f"{one.samples} samples in {_many(one.files, 'file')}, {show_size(one.dataset_bytes)}, {mode}; "
        f"page cache {one.page_cache}",
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
        for epoch in one.epochs
    ]
    lines += table(head, rows)
    aus = [100 * epoch.au for epoch in one.epochs]
    word = "passed" if one.passed else "not passed"
    needed = f"{100 * one.au_needed:.0f} % needed"
    lines += ["", f"AU {100 * one.au:.2f} % (epochs {min(aus):.2f} to {max(aus):.2f}), {needed}: {word}"]
    if one.failed:
        lines.append(f"{one.failed} reads failed")
    lines += ["", "Rules of MLPerf Storage v2.0, and ours:"]
    for rule in one.rules:
        said = f"  kept    {rule.text}: {rule.found}"
        lines.append(said if rule.kept else f"  BROKEN  {rule.text}: {rule.found}, {rule.needed} needed")
    return "\n".join([*lines, *(f"note: {note}" for note in one.notes), "", made_on()])


def checkpoint_page(one: CheckpointResult) -> str:
    lines = [
        f"{one.called}: {one.model}, {one.mode}, {one.folder}",
        f"{one.ranks} of {one.ranks_of_model} ranks, {_many(one.files, 'file')}, "
        f"{show_size(one.checkpoint_bytes)} a checkpoint (of {show_size(one.full_bytes)} at scale 1), "
        f"sizes times {one.scale:g}; page cache {one.page_cache}",
        "",
    ]
    head = ("", "n", "GiB/s, slowest rank", "seconds", "least", "most")
    rows = []
    for name, turns in (("write", one.writes), ("read", one.reads)):
        if turns:
            rates = sorted(turn.bytes_s / 2**30 for turn in turns)
            shown = (_middle(rates), _middle([turn.took_s for turn in turns]), rates[0], rates[-1])
            rows.append((name, str(len(turns)), *(f"{value:.3f}" for value in shown)))
    lines += table(head, rows)
    return "\n".join([*lines, *(f"note: {note}" for note in one.notes), "", made_on()])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns aligned right, but the first."""
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


def _many(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def made_on() -> str:
    from headrace import __version__

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"headrace {__version__}, {time.strftime('%Y-%m-%d %H:%M')}, Linux {platform.release()}, "
        f"{os.cpu_count()} processors, {memory / 2**30:.0f} GiB of memory"
    )
