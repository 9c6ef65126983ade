"""Build the broker for programs of other users. A node without a broker doesn't import its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import CorruptIndexError
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config
from headrace.dataplane.read import ReadPath
from headrace.namespace.namespace import Namespace
from headrace.overlay.upper import Upper
from headrace.store.store import Store

if TYPE_CHECKING:
    from headrace.entry.broker.server import Broker


def build_broker(
    config: Config,
    namespace: Namespace,
    store: Store,
    reads: ReadPath,
    *,
    on_corrupt: Callable[[CorruptIndexError], None],
) -> Broker:
    from headrace.entry.broker.server import Broker
    from headrace.entry.broker.service import BrokerService
    from headrace.entry.broker.view import View

    view = View(namespace.tree, Upper(config.upper_folder), WriteModes.parse(config.write))
    return Broker(BrokerService(view, namespace, store, reads, on_corrupt=on_corrupt))
