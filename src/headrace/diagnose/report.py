"""A diagnosis in words for people, and as a value for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from headrace.diagnose.attribute import HEALTHY_BELOW, Diagnosis, Finding
from headrace.diagnose.causes import REMEDIES

WIDTH = 100
GAIN_TOLD_BELOW = 10.0
"""Beyond it the next cause decides, which nothing is known of yet."""


def lines_of(diagnosis: Diagnosis) -> list[str]:
    """The report, ranked."""
    found = [_summary(diagnosis)]
    if diagnosis.before_s >= 0.5:
        found.append(f"({diagnosis.before_s:.1f} s before the first step are left out)")
    for number, cause in enumerate(diagnosis.causes, 1):
        found += ["", *_cause(number, cause)]
    if diagnosis.recording.missing:
        found += ["", "not seen:"]
        for text in diagnosis.recording.missing:
            found += textwrap.wrap(f"- {text}", WIDTH, subsequent_indent="  ", initial_indent="  ")
    return found


def value_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """What --json prints. Shares are of the wall time, gains are factors of speed."""
    recording = diagnosis.recording
    return {
        "healthy": diagnosis.healthy,
        "wall_s": round(diagnosis.wall_s, 3),
        "before_s": round(diagnosis.before_s, 3),
        "steps_share": round(diagnosis.steps_share, 4),
        "causes": [
            {
                "cause": one.cause.value,
                "title": REMEDIES[one.cause].title,
                "share": round(one.share, 4),
                "seconds": round(one.seconds, 3),
                "try": REMEDIES[one.cause].attempt,
                "gain": round(one.gain, 3),
                "assumes": REMEDIES[one.cause].assumes,
                "evidence": list(one.evidence),
            }
            for one in diagnosis.causes
        ],
        "cores": recording.cores,
        "gpus": list(recording.gpus),
        "steps": recording.steps,
        "samples": recording.samples,
        "places": [asdict(one) for one in recording.places],
        "moments": len(recording.moments),
        "missing": list(recording.missing),
    }


def _summary(diagnosis: Diagnosis) -> str:
    if not diagnosis.recording.moments:
        return "nothing was seen: the job ended too soon, or is no Python"
    trainers = diagnosis.recording.trainers
    whose = f" of {trainers} trainers" if trainers > 1 else ""
    steps = f"{diagnosis.steps_share:.0%} of {diagnosis.wall_s:.1f} s{whose} in steps that nothing is said against"
    if diagnosis.healthy:
        return f"healthy: {steps} (less than {HEALTHY_BELOW:.0%} is lost)"
    first = diagnosis.causes[0] if diagnosis.causes else None
    if first is None:
        return f"no cause stands out: {steps}"
    return f"{REMEDIES[first.cause].title} ({first.share:.0%} of the time); {steps}"


def _cause(number: int, found: Finding) -> list[str]:
    remedy = REMEDIES[found.cause]
    indent = " " * 4
    lines = textwrap.wrap(
        f"{number}. {found.share:.0%} ({found.seconds:.1f} s)  {remedy.title}  [{found.cause}]",
        WIDTH,
        subsequent_indent=indent,
    )
    for one in found.evidence:
        lines += textwrap.wrap(one, WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")
    speed = (
        f"up to {found.gain:.2f}×" if found.gain < GAIN_TOLD_BELOW else f"more than {GAIN_TOLD_BELOW:.0f}×"
    )
    gain = f"{speed} as fast, if {remedy.assumes}"
    lines += textwrap.wrap(f"try: {remedy.attempt}", WIDTH, initial_indent=indent, subsequent_indent=indent)
    lines += textwrap.wrap(gain, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines
