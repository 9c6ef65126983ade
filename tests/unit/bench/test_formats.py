"""Others can read what is written: tfrecords by awscrt's CRC-32C and protobuf, npz by zipfile."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import awscrt.checksums
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.bench import formats

RANDOM = 7


def example_class() -> Any:
    """tf.train.Example as its .proto says, by protobuf's own runtime."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, int, str]) -> Any:
        descriptor = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            more = {"type_name": type_name} if type_name else {}
            descriptor.field.add(name=field, number=number, type=kind, label=label, **more)
        return descriptor

    message("BytesList", ("value", 1, kinds.TYPE_BYTES, kinds.LABEL_REPEATED, ""))
    message("Int64List", ("value", 1, kinds.TYPE_INT64, kinds.LABEL_REPEATED, ""))
    optional = kinds.LABEL_OPTIONAL
    message(
        "Feature",
        ("bytes_list", 1, kinds.TYPE_MESSAGE, optional, ".t.BytesList"),
        ("int64_list", 3, kinds.TYPE_MESSAGE, optional, ".t.Int64List"),
    )
    features = message(
        "Features", ("feature", 1, kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED, ".t.Features.Entry")
    )
    entry = features.nested_type.add(name="Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=optional)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, label=optional, type_name=".t.Feature")
    message("Example", ("features", 1, kinds.TYPE_MESSAGE, optional, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def masked(body: bytes) -> int:
    checksum: int = awscrt.checksums.crc32c(body)
    return (((checksum >> 15) | (checksum << 17 & 0xFFFFFFFF)) + 0xA282EAD8) & 0xFFFFFFFF


def written_tfrecord(sizes: list[int]) -> bytes:
    out = io.BytesIO()
    formats.write_tfrecord(out, sizes, np.random.default_rng(RANDOM))
    return out.getvalue()


def test_tfrecords_are_as_others_read_them() -> None:
    sizes = [1, 127, 128, 70_000, 300]
    body, random, start = written_tfrecord(sizes), np.random.default_rng(RANDOM), 0
    example = example_class()
    for size in sizes:
        (length,) = struct.unpack_from("<Q", body, start)
        payload = body[start + 12 : start + 12 + length]
        assert struct.unpack_from("<I", body, start + 8)[0] == masked(body[start : start + 8])
        assert struct.unpack_from("<I", body, start + 12 + length)[0] == masked(payload)
        features = example.FromString(payload).features.feature
        assert features["image"].bytes_list.value[0] == random.bytes(size)
        assert list(features["size"].int64_list.value) == [size]
        start += 16 + length
    assert start == len(body)


def test_our_reader_reads_them() -> None:
    sizes, example = [10, 200_000, 3], example_class()
    examples = [example.FromString(record) for record in formats.records(io.BytesIO(written_tfrecord(sizes)))]
    assert [len(sample.features.feature["image"].bytes_list.value[0]) for sample in examples] == sizes


@pytest.mark.parametrize("spoil", ["length", "length's checksum", "payload", "checksum", "cut"])
def test_a_broken_tfrecord_is_seen(spoil: str) -> None:
    body = bytearray(written_tfrecord([500, 500]))
    first = len(body) // 2
    places = {
        "length": first + 1,
        "length's checksum": first + 9,
        "payload": first + 300,
        "checksum": len(body) - 2,
    }
    if spoil == "cut":
        del body[-7:]
    else:
        body[places[spoil]] ^= 1
    read = formats.records(io.BytesIO(bytes(body)))
    next(read)
    with pytest.raises(formats.BrokenRecordError):
        next(read)


def test_npz_is_an_array_and_labels() -> None:
    out = io.BytesIO()
    formats.write_npz(out, 12_345, np.random.default_rng(RANDOM))
    assert zipfile.ZipFile(out).testzip() is None
    out.seek(0)
    loaded = np.load(out)
    assert loaded["x"].nbytes == 12_345
    assert loaded["x"][..., 0].shape == (12_345,)  # how DLIO takes a sample out of it
    out.seek(0)
    assert formats.read_npz(out) == 12_345


def test_a_broken_npz_is_seen() -> None:
    out = io.BytesIO()
    formats.write_npz(out, 50_000, np.random.default_rng(RANDOM))
    body = bytearray(out.getvalue())
    body[20_000] ^= 1
    with pytest.raises(zipfile.BadZipFile):
        formats.read_npz(io.BytesIO(bytes(body)))


@pytest.mark.parametrize("size", [200, 1000, 65_000, 66_000, 131_250, 400_001])
def test_a_jpeg_is_segments_up_to_its_picture(size: int) -> None:
    out = io.BytesIO()
    formats.write_jpeg(out, size, np.random.default_rng(RANDOM))
    body = out.getvalue()
    assert abs(len(body) - size) <= 4
    assert body[:2] == b"\xff\xd8"
    assert body[-2:] == b"\xff\xd9"
    start, markers = 2, []
    while body[start + 1] != 0xDA:  # the picture's data begin
        assert body[start] == 0xFF
        markers.append(body[start + 1])
        start += 2 + struct.unpack_from(">H", body, start + 2)[0]
    assert {0xC0, 0xC4, 0xDB} <= set(markers)  # frame, Huffman and quantization tables
    assert len(body) - start < 30


def test_tokens_are_of_that_size() -> None:
    out = io.BytesIO()
    formats.write_tokens(out, (5 << 20) + 3, np.random.default_rng(RANDOM))
    assert out.tell() == (5 << 20) + 3
