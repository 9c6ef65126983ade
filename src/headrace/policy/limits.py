"""The limits of a policy, which messages, records and the parser have in common."""

from __future__ import annotations

POLICY_TEXT_MAX = 65536
"""The characters of a document."""
POLICY_AUTHOR_MAX = 256
"""The characters of the name of who set it."""
TRIAL_LIMIT_S = 25
"""Seconds for trying a policy on all nodes: many clients of the REST API wait for 30."""
TRIAL_LIMIT_S_MAX = 600
"""The same for a command on the host of a node: for the walk over some ten million files."""
