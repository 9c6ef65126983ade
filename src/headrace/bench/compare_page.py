"""Show a comparison as text, as a PNG, and as one page of HTML that needs no network. matplotlib draws the plots."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

from headrace.base.missing_extras import needs_extra
from headrace.base.sizes import show_size
from headrace.bench.compare import CompareResult, SystemResult
from headrace.bench.page import made_on, table

HEAD = (
    *(
        "way",
        "AU % by epoch",
        "first batch s",
        "samples/s",
        "origin GiB",
        "requests",
        "USD",
        "disk",
        "CPU s/GiB",
    ),
    "failed",
)
OTHER_COLOR, OUR_COLOR, REFERENCE_COLOR = "#8a94a6", "#1f6feb", "#c9ced8"
PAGE, PICTURE = "compare.html", "compare.png"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1c2330 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #e2e6ee; text-align: right }
th:first-child, td:first-child { text-align: left }
tr.ours { font-weight: 600 } .kind { color: #667085; font-weight: 400 } svg { width: 100%; height: auto }
"""


def text_page(result: CompareResult) -> str:
    lines = [
        *_about(result),
        "",
        *table(HEAD, [_row(way) for way in result.ways if way.training is not None]),
    ]
    lines += [""] + [f"{way.name}: not run, {way.not_run}" for way in result.ways if way.training is None]
    lines += [f"note: {note}" for note in result.notes]
    return "\n".join([*lines, "", made_on()])


def write_report(result: CompareResult, folder: str) -> list[str]:
    """Create the directory, write PAGE and PICTURE there, and return their paths.

    Raises NotSupportedError without matplotlib.
    """
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, name) for name in (PAGE, PICTURE)]
    figure = plots(result)
    figure.savefig(paths[1], dpi=150)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    svg = drawn.getvalue()
    with open(paths[0], "w", encoding="utf-8") as out:
        out.write(html_page(result, svg[svg.index("<svg") :]))
    return paths


def html_page(result: CompareResult, svg: str) -> str:
    escape = html.escape
    rows = []
    for way in result.ways:
        kind = f'<br><span class="kind">{escape(way.kind)}</span>'
        if way.training is None:
            why = f'<td colspan="{len(HEAD) - 1}">not run: {escape(way.not_run)}</td>'
            rows.append(f"<tr><td>{escape(way.name)}{kind}</td>{why}</tr>")
            continue
        first, *rest = _row(way)
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        mark = ' class="ours"' if way.name == "Headrace" else ""
        rows.append(f"<tr{mark}><td>{escape(first)}{kind}</td>{cells}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>{escape(result.workload)}: ways compared</title>",
            f"<style>{_STYLE}</style><h1>{escape(result.workload)}: the ways to feed a GPU</h1>",
            *(f"<p>{escape(line)}</p>" for line in _about(result)),
            f"<table><tr>{head}</tr>{''.join(rows)}</table>",
            svg,
            "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in result.notes) + "</ul>",
            f"<p>{escape(made_on())}</p></html>",
        ]
    )


def plots(result: CompareResult) -> Any:
    """Draw a matplotlib figure: AU by epoch, first batch, bytes from the origin, processor time."""
    with needs_extra("plots"):
        from matplotlib.figure import Figure
    ways = [way for way in result.ways if way.training is not None]
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    _au(axes[0][0], ways)
    _bars(axes[0][1], ways, "samples a second, last epoch", lambda way: _epochs(way)[-1].samples_s)
    _bars(
        axes[1][0],
        ways,
        "GiB from the origin, all epochs",
        lambda way: sum(s.bytes for s in way.served) / 2**30,
    )
    _bars(axes[1][1], ways, "processor seconds a GiB read", lambda way: way.processor_s_gib)
    figure.suptitle(f"{result.called}: {result.workload}, {show_size(result.dataset_bytes)}")
    return figure


def _au(axis: Any, ways: Sequence[SystemResult]) -> None:
    for way in ways:
        epochs = _epochs(way)
        ours = way.name == "Headrace"
        axis.plot(
            [epoch.epoch for epoch in epochs],
            [100 * epoch.au for epoch in epochs],
            marker="o",
            label=_label(way),
            linewidth=2.5 if ours else 1.2,
            linestyle="--" if way.kind == "reference" else "-",
            color=OUR_COLOR if ours else None,
        )
    needed = ways[0].training.au_needed if ways and ways[0].training is not None else 0
    axis.axhline(100 * needed, color="#d0453e", linewidth=0.8, linestyle=":")
    axis.set(title="AU by epoch, %; dotted: needed", ylim=(0, 103), xlabel="epoch")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(fontsize=7, loc="lower right")


def _bars(
    axis: Any, ways: Sequence[SystemResult], title: str, value: Callable[[SystemResult], float]
) -> None:
    colors = [
        OUR_COLOR if way.name == "Headrace" else REFERENCE_COLOR if way.kind == "reference" else OTHER_COLOR
        for way in ways
    ]
    places = range(len(ways))  # not labels: two of them may be the same
    bars = axis.barh(
        places, [value(way) for way in ways], color=colors, tick_label=[_label(way) for way in ways]
    )
    axis.bar_label(bars, fmt="%.3g", padding=2, fontsize=8)
    axis.invert_yaxis()
    axis.set_title(title)
    axis.margins(x=0.15)


def _label(way: SystemResult) -> str:
    """Return a label for a plot, where a full path would be too long."""
    return os.path.basename(way.name) if os.path.isabs(way.name) else way.name


def _row(way: SystemResult) -> tuple[str, ...]:
    epochs = _epochs(way)
    return (
        way.name,
        " ".join(f"{100 * epoch.au:.1f}" for epoch in epochs),
        f"{epochs[0].first_batch_s:.2f}",
        f"{epochs[-1].samples_s:.1f}",
        f"{sum(served.bytes for served in way.served) / 2**30:.3f}",
        str(sum(served.requests for served in way.served)),
        f"{sum(served.cost for served in way.served):.6f}",
        show_size(way.disk_bytes) if way.disk_bytes else "-",
        f"{way.processor_s_gib:.2f}",
        str(sum(epoch.failed for epoch in epochs)),
    )


def _epochs(way: SystemResult) -> Any:
    assert way.training is not None
    return way.training.epochs


def _about(result: CompareResult) -> list[str]:
    ran = [way.training for way in result.ways if way.training is not None]
    if not ran:
        return [f"{result.workload}: no way could be run"]
    first = ran[0]
    where = f"{result.nodes} nodes of a lab" if result.nodes else "one host"
    link = f", links of {result.rate_bits_s / 1e6:g} Mbit/s" if result.rate_bits_s else ""
    origin = [f"at most {result.origin_bytes_s / 1e6:g} MB/s"] if result.origin_bytes_s else []
    origin += [f"{result.origin_latency_s * 1e3:g} ms a request"] if result.origin_latency_s else []
    order = "another order in each epoch" if first.shuffle else "a fixed order"
    return [
        f"{result.called}: {result.workload} on {where}{link}, "
        f"{first.accelerators} simulated {first.accelerator.upper()}, "
        f"{first.steps} steps, {order}; sizes times {first.sizes:g}, times {first.times:g}",
        f"{show_size(result.dataset_bytes)} at {result.origin}"
        + (f", {', '.join(origin)}" if origin else ""),
        "first batch: of the first epoch; samples/s: of the last; origin, requests, USD: of all, nothing cached before",
    ]
