"""Hold the policy that a node obeys now."""

from __future__ import annotations

from headrace.base.listeners import Listeners
from headrace.policy.document import PolicyDocument, parse_policy
from headrace.policy.effects import Effects
from headrace.policy.record import PolicyRecord
from headrace.policy.resolve import PolicyResolver


class CurrentPolicy:
    """The policy in force. Whoever obeys it asks anew each time, or adds itself to `changed`. Belongs to one loop."""

    def __init__(self) -> None:
        self.record = PolicyRecord()
        self.resolver = PolicyResolver(PolicyDocument())
        self.changed: Listeners[[PolicyResolver]] = Listeners()
        """Called after a change, with the resolver of the policy before."""

    def adopt(self, record: PolicyRecord) -> None:
        """Put a record in force. Raise PolicyFaultsError and go on as before when its text has faults."""
        before = self.resolver
        if record.text != self.record.text:
            self.resolver = PolicyResolver(parse_policy(record.text))
        self.record = record
        if before is not self.resolver:
            self.changed(before)

    def of(self, path: bytes) -> Effects:
        """Return the effects on a file. path: absolute and normal."""
        return self.resolver.of(path)

    def of_directory(self, directory: bytes) -> Effects:
        """Return the effects on a directory's listing, and on its files as far as their names don't matter."""
        return self.resolver.of_directory(directory)
