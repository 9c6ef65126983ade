"""The limits of a policy, which messages, records and the parser have in common."""

from __future__ import annotations

POLICY_TEXT_MAX = 65536
"""The characters of a document."""
POLICY_AUTHOR_MAX = 256
"""The characters of the name of who set it."""
