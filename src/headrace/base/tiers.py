"""The tiers of cache volumes."""

from __future__ import annotations

TIERS = ("memory", "nvme", "hdd")
"""The names that the configuration and policies have for them, the fastest first."""
