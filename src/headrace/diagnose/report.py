"""Render a diagnosis as text for people and as a value for programs."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from headrace.diagnose.attribute import HEALTHY_BELOW, Diagnosis, Finding
from headrace.diagnose.causes import REMEDIES

WIDTH = 100
GAIN_SHOWN_BELOW = 10.0
"""Speed-up up to which it is shown. Beyond it the next cause limits the gain, which the recording cannot show yet."""


def lines_of(diagnosis: Diagnosis) -> list[str]:
    """Return the lines of the report, causes ranked by share."""
    lines = [_summary(diagnosis)]
    if diagnosis.wall_s and diagnosis.before_s >= 0.5:
        lines.append(f"({diagnosis.before_s:.1f} s before the first step are left out)")
    for number, cause in enumerate(diagnosis.causes, 1):
        lines += ["", *_cause(number, cause)]
    if diagnosis.recording.missing:
        lines += ["", "not observed:"]
        for text in diagnosis.recording.missing:
            lines += textwrap.wrap(f"- {text}", WIDTH, subsequent_indent="  ", initial_indent="  ")
    return lines


def value_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the value for --json. Shares are of the wall time; gains are factors of speed."""
    recording = diagnosis.recording
    return {
        "summary": _summary(diagnosis),
        "healthy": diagnosis.healthy,
        "wall_s": round(diagnosis.wall_s, 3),
        "before_s": round(diagnosis.before_s, 3),
        "steps_share": round(diagnosis.steps_share, 4),
        "causes": [
            {
                "cause": finding.cause.value,
                "title": REMEDIES[finding.cause].title,
                "share": round(finding.share, 4),
                "seconds": round(finding.seconds, 3),
                "try": REMEDIES[finding.cause].attempt,
                "gain": round(finding.gain, 3),
                "assumes": REMEDIES[finding.cause].assumes,
                "evidence": list(finding.evidence),
            }
            for finding in diagnosis.causes
        ],
        "cores": recording.cores,
        "gpus": list(recording.gpus),
        "steps": recording.steps,
        "samples": recording.samples,
        "places": [asdict(place) for place in recording.places],
        "moments": len(recording.moments),
        "missing": list(recording.missing),
    }


def _summary(diagnosis: Diagnosis) -> str:
    if not diagnosis.recording.moments and diagnosis.before_s:
        advice = (
            "it ended too soon for a diagnosis"
            if diagnosis.recording.ended
            else "watch it longer by --seconds, or while it trains by --pid"
        )
        return f"no step of the job was seen in {diagnosis.before_s:.1f} s: {advice}"
    if not diagnosis.recording.moments:
        return "nothing was observed: the job ended too soon, or is not a Python program"
    trainers = diagnosis.recording.trainers
    whose = f" of {trainers} trainers" if trainers > 1 else ""
    steps = f"{diagnosis.steps_share:.0%} of {diagnosis.wall_s:.1f} s{whose} in steps without a problem"
    if diagnosis.healthy:
        return f"healthy: {steps} (all causes together take less than {HEALTHY_BELOW:.0%})"
    first = diagnosis.causes[0] if diagnosis.causes else None
    if first is None:
        return f"no cause stands out: {steps}"
    return f"{REMEDIES[first.cause].title} ({first.share:.0%} of the time); {steps}"


def _cause(number: int, finding: Finding) -> list[str]:
    remedy = REMEDIES[finding.cause]
    indent = " " * 4
    lines = textwrap.wrap(
        f"{number}. {finding.share:.0%} ({finding.seconds:.1f} s)  {remedy.title}  [{finding.cause}]",
        WIDTH,
        subsequent_indent=indent,
    )
    for sentence in finding.evidence:
        lines += textwrap.wrap(sentence, WIDTH, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ")
    speed = (
        f"up to {finding.gain:.2f}×"
        if finding.gain < GAIN_SHOWN_BELOW
        else f"more than {GAIN_SHOWN_BELOW:.0f}×"
    )
    gain = f"{speed} as fast, if {remedy.assumes}"
    lines += textwrap.wrap(f"try: {remedy.attempt}", WIDTH, initial_indent=indent, subsequent_indent=indent)
    lines += textwrap.wrap(gain, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines
