"""A server in the place of an object store, for tests of obstore's clients. obstore waits for it in its own threads."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import TypeVar

from headrace.origin import cloud
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.options import parse_options


class StandInStore(http.server.ThreadingHTTPServer):
    """Serves each connection in a thread, at a free port of this host."""

    daemon_threads = True

    def __init__(self, handler: type[StandInHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)


class StandInHandler(http.server.BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        return None


Store = TypeVar("Store", bound=StandInStore)


@contextlib.contextmanager
def serving(store: Store) -> Iterator[Store]:
    """Run a store until the end of the block."""
    with store:
        thread = threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield store
        finally:  # a thread that serves a closed socket would not end, and take a core
            store.shutdown()
            thread.join()


def endpoint_of(store: StandInStore) -> str:
    return f"http://127.0.0.1:{store.server_address[1]}"


def s3_options(store: StandInStore) -> dict[str, str]:
    return {"endpoint": endpoint_of(store), "access_key_id": "a", "secret_access_key": "b"}


def attach_s3(store: StandInStore) -> ObjectStoreOrigin:
    url = "s3://bucket"
    return ObjectStoreOrigin(url, cloud.s3_stores(url, "bucket", parse_options(url, s3_options(store))), "")


def attach_gcs(store: StandInStore) -> ObjectStoreOrigin:
    url = "gs://bucket"
    options = parse_options(url, {"endpoint": endpoint_of(store), "token": "any"})
    return ObjectStoreOrigin(url, cloud.gcs_stores(url, "bucket", options), "")
