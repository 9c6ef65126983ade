"""Ask a far cluster whether its origins lead back to a mount that is being added."""

from __future__ import annotations

from headrace.base.deadline import Deadline
from headrace.origin.far_cluster import FarRequest, ask_json, call_far, open_far_nodes
from headrace.origin.options import OriginOptions
from headrace.origin.threads import Threads
from headrace.wire.api import ApiTrace


class FarTrace:
    """The far cluster behind one mount. url: canonical. Nothing is sent until the first question."""

    def __init__(self, url: str, options: OriginOptions) -> None:
        self.url = url
        self._nodes, self._path = open_far_nodes(url, options)
        self._threads = Threads()

    async def leads_back(
        self, below: str, *, instance: str, mount: str, hops: int, deadline: Deadline
    ) -> bool:
        """Return whether what lies at a path below the URL leads back to a mount. below: "" or with a leading slash.
        Raise HeadraceError if the far cluster does not say, as an earlier release does not."""
        query = {
            "path": f"{self._path}{below}" or "/",
            "instance": instance,
            "mount": mount,
            "hops": str(hops),
        }

        def ask(request: FarRequest) -> ApiTrace:
            return ask_json(self._nodes, "traceMount", query, ApiTrace, self.url, request=request)

        return (await call_far(self._threads, ask, self.url, deadline)).leads_back

    def close(self) -> None:
        self._nodes.close()
        self._threads.close()
