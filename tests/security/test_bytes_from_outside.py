"""Whatever bytes a record, a manifest, an origin or a header has, the program goes on: found by `./dev fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import cast

import msgspec
import numpy as np
import pytest
import torch
import zstandard

from headrace.base.decoding import convert_words, decode_json, decode_msgpack
from headrace.base.errors import CorruptCheckpointError, PathNotFoundError, ProtocolError, UsageError
from headrace.base.sizes import parse_size
from headrace.checkpoint import compression
from headrace.cluster import membership
from headrace.http.messages import Request
from headrace.integrations import safetensors
from headrace.origin.web import index_names
from headrace.ring.view import NodeInfo
from headrace.s3 import conditions, signature
from headrace.s3.errors import S3Error
from headrace.wire import frame, peer_frame
from headrace.wire.messages import Failure

pytestmark = pytest.mark.expected_warnings("a node record can't be decoded")


NO_TEXT = b'{"id": "\xff"}'
DEEP = b"[" * 100_000
HOSTILE_JSON = [NO_TEXT, DEEP, b"{", b"", b'{"id": 1e999}', b'{"id": "\\ud800"}']


@pytest.mark.parametrize("data", HOSTILE_JSON)
def test_json_has_one_error(data: bytes) -> None:
    for kind in (NodeInfo, list[str], dict[str, object]):
        with pytest.raises(msgspec.DecodeError):
            decode_json(data, kind)


@pytest.mark.parametrize("data", [b"\xa1\xff", b"\x91" * 100_000, b"", b"\xc1"])
def test_msgpack_has_one_error(data: bytes) -> None:
    for kind in (str, list[object]):
        with pytest.raises(msgspec.DecodeError):
            decode_msgpack(data, kind)


@pytest.mark.parametrize("decode", [frame.decode_request, frame.decode_answer, peer_frame.decode_request])
def test_nested_frames_are_refused(decode: Callable[[bytes], object]) -> None:
    body = b"\x82\xa4type\xa6Report\xa6status\x81\xa1a" + b"\x91" * 100_000
    with pytest.raises(ProtocolError):
        decode(body)


@pytest.mark.parametrize("data", HOSTILE_JSON)
def test_hostile_node_record_is_no_member(data: bytes) -> None:
    """It is heard in a callback of the watch, which must not raise."""
    assert membership._decode(data) is None


@pytest.mark.parametrize(
    "change", [{"id": "../up"}, {"id": ""}, {"capacity_bytes": 1 << 70}, {"capacity_bytes": -1}]
)
def test_impossible_node_record_is_no_member(change: dict[str, object]) -> None:
    info = NodeInfo("n", "i", "h:1", "", 1, "0.1", 3)
    assert membership._decode(msgspec.json.encode(info)) == info
    assert membership._decode(msgspec.json.encode({**msgspec.to_builtins(info), **change})) is None


def test_packed_chunk_is_no_bomb() -> None:
    """Its frame says how much memory is taken, whatever limit the caller names."""
    bomb = zstandard.ZstdCompressor().compress(bytes(200 << 20))
    assert len(bomb) < 1 << 16
    target = np.empty(4096, np.uint8)
    with pytest.raises(CorruptCheckpointError, match="209715200 bytes instead of 4096"):
        compression.decompress(memoryview(bomb), target, 1, "chunk")
    announced = b"\x28\xb5\x2f\xfd\xe0" + (1 << 50).to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(CorruptCheckpointError):
        compression.decompress(memoryview(announced), target, 1, "chunk")


@pytest.mark.parametrize("shape", [[0, 1 << 62, 1 << 62], [0, 1 << 70], [1] * 100, [0] * 65])
def test_impossible_shape_of_a_tensor(shape: list[int]) -> None:
    header = msgspec.json.encode({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}})
    data = len(header).to_bytes(8, "little") + header
    with pytest.raises(CorruptCheckpointError):
        safetensors._tensors(memoryview(bytearray(data)), "f", None, lambda name: True)
    assert torch.empty([0, 5]).numel() == 0


def test_date_far_away_is_no_condition() -> None:
    for text in ("Mon, 01 Jan 0001 00:00:00 +9999", "Mon, 31 Dec 9999 23:59:59 -9999", "1 Jan " + "9" * 30):
        request = Request("GET", b"/", b"/", [], {"if-modified-since": text}, True)
        conditions.check_read(request, '"e"', int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1e9))


@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "1." + "9" * 5000, "٣"])
def test_size_beyond_all_disks(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_broken_index_page() -> None:
    assert index_names("<a href='http://[x'><a href='good'>", "/") == ["good"]
    with pytest.raises(ValueError):
        index_names("<![0", "/")


def test_number_that_is_no_text() -> None:
    """A query such as `?limit=%b0` has one."""
    with pytest.raises(msgspec.ValidationError):
        convert_words({"capacity_bytes": "\udcb0"}, NodeInfo)


def test_failure_about_a_name_that_is_no_text() -> None:
    """Else the answer can't be sent, and the connection ends instead."""
    error = PathNotFoundError(os.fsdecode(b"/data/\xff"), why=os.fsdecode(b"\xfe"), hint="")
    sent = frame.encode(frame.failure_of(error))
    failure = frame.error_of(cast(Failure, frame.decode_answer(sent[frame.HEADER_BYTES :])))
    assert isinstance(failure, PathNotFoundError)
    assert failure.what == "/data/\\xff"


def test_region_that_is_no_text() -> None:
    """By whoever knows the id of a key, and not its secret."""
    credential = "AKID/20261123/\udcff/s3/aws4_request"
    header = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=ab"
    headers = {"host": "h", "authorization": header, "x-amz-date": "20261123T120000Z"}
    with pytest.raises(S3Error, match="Credential must be"):
        signature.claim_of(Request("GET", b"/", b"/", [], headers, True))
    with pytest.raises(S3Error, match="Credential must be"):
        signature.claim_of_form(credential, "ab", "20261123T120000Z")


def test_long_authorization_costs_nothing() -> None:
    """One request of 60 KB, from whoever reaches the gateway, kept it from all others for three minutes."""
    code = "from headrace.http.messages import Request; from headrace.s3 import signature\n"
    code += "header = 'AWS4-HMAC-SHA256 ' + 'a' * 60_000\n"
    code += "request = Request('GET', b'/', b'/', [], {'authorization': header}, True)\n"
    code += "try: signature.claim_of(request)\n"
    code += "except Exception as error: print(error.code)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "AuthorizationHeaderMalformed\n"
