"""Hold a generator that a sampler imports while it runs."""

from __future__ import annotations

import random

LATER = random.Random(10)
