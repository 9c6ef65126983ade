"""The tiers of cache volumes."""

from __future__ import annotations

MEMORY = "memory"
"""The tier whose files are lost when the host restarts."""
TIERS = (MEMORY, "nvme", "hdd")
"""The names that the configuration and policies have for them, the fastest first."""
