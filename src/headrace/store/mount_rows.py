"""Keep the mounts that a node serves, in the index, for its clients and for its next run."""

from __future__ import annotations

import os

import msgspec

from headrace.base.decoding import decode_msgpack
from headrace.store.environment import Environment
from headrace.store.transactions import Transactions


class MountRows:
    """The rows of mounts, by path. A change is a commit of its own; durable after the next checkpoint."""

    def __init__(self, transactions: Transactions, environment: Environment) -> None:
        self._transactions = transactions
        self._table = environment.mounts

    def all(self) -> dict[str, dict[str, str]]:
        with self._transactions.reading() as txn:
            rows = [(bytes(path), bytes(value)) for path, value in txn.cursor(self._table)]
        return {os.fsdecode(path): decode_msgpack(value, dict[str, str]) for path, value in rows}

    def put(self, path: str, record: dict[str, str]) -> None:
        with self._transactions.batch():
            self._transactions.put(self._table, os.fsencode(path), msgspec.msgpack.encode(record))

    def drop(self, path: str) -> None:
        with self._transactions.batch():
            self._transactions.delete(self._table, os.fsencode(path))
