"""Operators write these: files and variables of the configuration, sizes, write modes, addresses, URLs of origins."""

from __future__ import annotations

import os
import tempfile
from unittest import mock

from headrace.base.errors import MissingExtraError, UsageError
from headrace.base.sizes import parse_size, show_size
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.config.load import load, variable_of
from headrace.config.schema import Config
from headrace.http.address import split_address
from headrace.origin.factory import parse_origin
from headrace.origin.options import parse_options
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text

_FOLDER = tempfile.gettempdir()
_FILE = f"""
run_folder = "{_FOLDER}/headrace-fuzz/run"
replicas = 2
listen = "127.0.0.1:7412"
write = "off,/scratch=local"
sync_interval_s = 60

[[cache]]
folder = "{_FOLDER}"
capacity_bytes = "10GiB"
tier = "nvme"

[mounts."/data"]
url = "s3://bucket/prefix"
options = {{ region = "eu-1" }}
""".encode()


def _config(data: bytes) -> None:
    """A file, and after a zero byte variables of the environment, one a line."""
    text, _, lines = data.partition(b"\0")
    with tempfile.NamedTemporaryFile(suffix=".toml") as file:
        file.write(text)
        file.flush()
        with mock.patch.dict(os.environ, _variables(lines)):
            loaded = load(file=file.name)
    for volume in loaded.config.cache:
        assert volume.folder.startswith("/")
    repr(loaded.config)


def _variables(lines: bytes) -> dict[str, str]:
    """Those of ours; the environment has no zero bytes."""
    known = {variable_of(name) for name in Config.__struct_fields__} - {None}
    pairs = (line.partition(b"=") for line in lines.replace(b"\0", b"").split(b"\n"))
    named = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    return {name: value for name, value in named.items() if name in known}


def _modes(data: bytes) -> None:
    modes = WriteModes.parse(data.decode("utf-8", "surrogateescape"))
    again = WriteModes.parse(modes.text())
    assert again.text() == modes.text()
    assert modes.any == any(modes.of(path) is not WriteMode.OFF for path in (b"/", *modes.tops()))
    for path in (b"/", b"/a/b/c", *modes.tops()):
        assert again.of(path) is modes.of(path) and again.copies(path) == modes.copies(path) >= 1
        assert modes.of(path) is not WriteMode.OFF or not modes.waits(path)
        assert again.is_exclusive(path) == modes.is_exclusive(path) <= (not modes.waits(path))
        modes.any_below(path)
        modes.persists_below(path)


def _sizes(data: bytes) -> None:
    size = parse_size(data.decode("utf-8", "surrogateescape"))
    assert size >= 0
    show_size(size)


def _addresses(data: bytes) -> None:
    """An address; a URL of an origin, and its options, on further lines."""
    address, url, *options = [*data.decode("utf-8", "surrogateescape").split("\n")[:8], ""]
    try:
        host, port = split_address(address, "setting")
        assert host and 0 <= port <= 65535
    except UsageError:
        pass
    try:
        parsed_url = parse_origin(url)
        assert "://" in parsed_url and parse_origin(parsed_url) == parsed_url
    except (UsageError, MissingExtraError):
        pass
    pairs = (line.partition("=") for line in options if "=" in line)
    known = parse_options("s3://b", {name: value for name, _, value in pairs})
    assert known.concurrency_max >= 0 and known.timeout_s >= 0


FUZZERS = [
    Fuzzer(
        "config",
        "the configuration's file and variables (config/load.py)",
        _config,
        (UsageError,),
        [
            _FILE,
            _FILE + b"\0HEADRACE_REPLICAS=3\nHEADRACE_WRITE=back:2\nHEADRACE_CACHE=/tmp:5G:hdd,/x:1TB",
            f'cache = ["{_FOLDER}:5GiB:nvme"]\nrest_address = "127.0.0.1:80"\n'.encode(),
        ],
        words=[name.encode() for name in Config.__struct_fields__]
        + [
            b" = ",
            b'"',
            b"[",
            b"[[",
            b"]]",
            b"{",
            b"}",
            b"\n",
            b"1979-05-27T07:32:00Z",
            b"0x",
            b"nan",
            b"\\u0000",
            b'"""',
        ],
        mutate=mutate_text,
    ),
    Fuzzer(
        "write-modes",
        "write modes by path (base/write_modes.py)",
        _modes,
        (UsageError,),
        [b"back", b"off,/scratch=local,/checkpoints=back:2", b"through, /a/b = off", b"/a=back,exclusive"],
        words=[
            b",exclusive",
            b"off",
            b"local",
            b"back:2",
            b"through",
            b"=",
            b",",
            b"/a",
            b":",
            b"..",
            b"back:99",
            b"=back",
        ],
        mutate=mutate_text,
        input_bytes_max=512,
    ),
    Fuzzer(
        "sizes",
        "sizes in words (base/sizes.py)",
        _sizes,
        (UsageError,),
        [b"500GiB", b"1.5T", b" 64 MB ", b"0"],
        words=[b"KiB", b"PB", b".", b"99999999999999999999", "٣".encode(), "²".encode()],
        mutate=mutate_text,
        input_bytes_max=8192,
    ),
    Fuzzer(
        "origin-urls",
        "addresses to listen at, URLs of origins and their options (http/address.py, origin/)",
        _addresses,
        (UsageError,),
        [
            b"127.0.0.1:9000\ns3://bucket/prefix\nregion=eu-1\nendpoint=https://h:1\nrequest_limit_per_s=5.5",
            b"[::1]:80\nhttp://host:8080/a/b\nconcurrency_max=3\nanonymous=yes",
            b"h:1\nfile:///a/../b",
            b"h:1\nsynthetic://files=10,size=1MiB",
            b"h:1\nhf://datasets/x",
        ],
        words=[
            b"://",
            b"s3",
            b"gs",
            b"az",
            b"file",
            b"memory",
            b"synthetic",
            b"@",
            b"?",
            b"#",
            b"sig=",
            b"timeout_s=nan",
        ],
        mutate=mutate_text,
    ),
]
