"""Words that tests of prose look for."""

from __future__ import annotations

import functools
import re
from pathlib import Path

RETIRED = re.compile(
    r"\b(anew|bring|brings|brought|by hand|doors?|goes|hand-over|heard|hears|lets go|mend|mends|mended"
    r"|odd|somebody|so long at most|tells|told|went|whoever)\b",
    re.IGNORECASE,
)

VERBS_FILE = Path(__file__).with_name("verbs.txt")

FRAGMENTS = {
    *(
        "What",
        "Of",
        "Whether",
        "Who",
        "Whoever",
        "Whose",
        "As",
        "By",
        "So",
        "That",
        "Until",
        "In",
        "On",
        "At",
        "To",
    ),
    *(
        "Where",
        "When",
        "While",
        "How",
        "With",
        "Without",
        "For",
        "From",
        "After",
        "Before",
        "None",
        "None:",
        "Beside",
    ),
}


@functools.cache
def spoken_verbs() -> frozenset[str]:
    """Return verbs as docstrings begin with them: "Return", "Returns"."""
    verbs = set(VERBS_FILE.read_text().split())
    thirds = {verb[:-1] + "ies" for verb in verbs if verb.endswith("y")} | {verb + "es" for verb in verbs}
    return frozenset(word.capitalize() for word in verbs | thirds | {verb + "s" for verb in verbs})
