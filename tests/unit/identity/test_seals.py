"""Seals of records at keys of all paths, also of those that are not UTF-8."""

from __future__ import annotations

import pytest

from headrace.identity.authority import Authority
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.identity.seals import Seals
from tests.certificates import authority, issued

RECORD = b'{"url":"s3://b"}'
KEYS = ["mounts/data-\udcff", "pins/\udc80/\u00e4"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("lab") / "authority")


@pytest.fixture(scope="module")
def nodes(lab: Authority) -> tuple[Seals, Seals]:
    return Seals(MutualTls(issued(lab, "a"))), Seals(MutualTls(issued(lab, "b")))


@pytest.mark.parametrize("key", KEYS)
def test_a_record_of_any_path_is_sealed(nodes: tuple[Seals, Seals], key: str) -> None:
    first, second = nodes
    sealed = first.close(key, RECORD)
    assert second.open(key, sealed) == RECORD
    for other in ("mounts/data", *KEYS):
        if other != key:
            with pytest.raises(StrangerError, match="its signature is wrong"):
                second.open(other, sealed)


@pytest.mark.parametrize("key", KEYS)
def test_a_seal_that_was_copied_to_such_a_key_is_refused(nodes: tuple[Seals, Seals], key: str) -> None:
    """It was no StrangerError: a node that read the record took etcd for unavailable, for ever."""
    first, second = nodes
    with pytest.raises(StrangerError, match="its signature is wrong"):
        second.open(key, first.close("mounts/data", RECORD))
