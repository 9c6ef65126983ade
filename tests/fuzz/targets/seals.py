"""Sealed records in etcd, which whoever can write there changes. Keys and names are those of every process, so that
what one of them sealed is good in another."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.cluster.beliefs import Beliefs
from headrace.identity import authority as making
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.identity.seals import ENDED, Seals
from tests.certificates import authority, issued
from tests.fuzz.fuzzer import Fuzzer

_RECORDS = {
    "mounts/data": b'{"url":"s3://b","options":{}}',
    "nodes/a": b'{"id":"a"}',
    "written/a": ENDED,
    "copies/a": b'["b","c"]',
    "jobs/7/parts/a": b'{"done":true}',
}


def _seals() -> Seals:
    """Make seals. What they read of their files stays, as of files that are half written."""
    numbers = iter(range(1800, 1900))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "_new_key", lambda: ec.derive_private_key(next(numbers), ec.SECP256R1()))
        lab = authority(Path(folder) / "authority")
        return Seals(MutualTls(issued(lab, "a", days=1000)))


_SEALS = _seals()


def _open(data: bytes) -> None:
    """Open a record. An opened one was sealed for that key; a refused one leaves what was believed."""
    believed = dict(_RECORDS)
    opened = 0
    for key, record in _RECORDS.items():
        try:
            assert _SEALS.open(key, data, newest=False) == record
            opened += 1
        except StrangerError as error:
            refusal = error
        beliefs = Beliefs(_SEALS, None, believed)
        meant = beliefs.meaning(key, data)
        assert meant in (record, None, b"")
    if not opened:
        raise refusal


FUZZERS = [
    Fuzzer(
        "sealed-records",
        "records with their seals (identity/seals.py)",
        _open,
        (StrangerError,),
        [_SEALS.close(key, record) for key, record in _RECORDS.items()],
        words=[
            b',"seal":',
            b'{"ended":true}',
            b'{"record":',
            b'"at_ns":',
            b'"certificate":[',
            b'"signature":"',
        ],
    ),
]
