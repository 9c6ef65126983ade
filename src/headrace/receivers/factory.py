"""Build the queue of events that the options of a mount name."""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.origin.factory import FAR_CLUSTER
from headrace.origin.options import OPTION_EVENTS, parse_options
from headrace.receivers.far_changes import FarChanges
from headrace.receivers.pubsub import PubsubSubscription, check_subscription
from headrace.receivers.source import EventQueue
from headrace.receivers.sqs import SqsQueue, check_queue_url

FOLLOW = "on"
"""The option `events` of a far cluster, which needs no queue."""


def check_events(url: str, options: dict[str, str]) -> None:
    """Raise UsageError if the option `events` does not fit the origin. url: as `parse_origin` returns it."""
    name = options.get(OPTION_EVENTS, "")
    scheme = url.partition("://")[0]
    if not name:
        return
    if scheme == "s3":
        check_queue_url(name)
    elif scheme == "gs":
        check_subscription(name)
    elif scheme == FAR_CLUSTER:
        if name != FOLLOW:
            raise UsageError(
                url, why="the option events of a far cluster is not `on`", hint="write events=on"
            )
    else:
        raise UsageError(
            url,
            why=f"origins of {scheme}:// have no queue of events",
            hint="let the origin post events to the REST API, see docs/events.md",
        )


def build_queue(url: str, options: dict[str, str]) -> EventQueue | None:
    """Build the queue; None if the mount has none. It connects at its first call. Raise UsageError."""
    check_events(url, options)
    name = options.get(OPTION_EVENTS, "")
    if not name:
        return None
    parsed = parse_options(url, options)
    if url.startswith(f"{FAR_CLUSTER}://"):
        return FarChanges(url, parsed)
    return SqsQueue(name, parsed) if url.startswith("s3://") else PubsubSubscription(name, parsed)
