"""Build the queue of events that the options of a mount name."""

from __future__ import annotations

from headrace.base.errors import UsageError
from headrace.origin.factory import FAR_CLUSTER
from headrace.origin.options import OPTION_EVENTS, parse_options
from headrace.receivers.azure_queue import AzureQueue, check_azure_queue
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
    elif scheme == "az":
        check_azure_queue(name)
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


def build_queue(url: str, options: dict[str, str]) -> EventQueue:
    """Build the queue that the option `events` of a mount names. It connects at its first call. Raise UsageError, also
    for a missing profile or certificate, which may be there later."""
    check_events(url, options)
    name = options[OPTION_EVENTS]
    parsed = parse_options(url, options)
    if url.startswith(f"{FAR_CLUSTER}://"):
        return FarChanges(url, parsed)
    if url.startswith("az://"):
        return AzureQueue(name, parsed)
    return SqsQueue(name, parsed) if url.startswith("s3://") else PubsubSubscription(name, parsed)
