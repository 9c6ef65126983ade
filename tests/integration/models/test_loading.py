"""A model that many ranks of a host load at one time, cold: every tensor is right, and the origin sends it once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headrace.integrations.safetensors import iter_model, load_model
from headrace.vfs.brokered.mounts import SOCKET_ATTRIBUTE
from tests.integration.cli.host import Host

from .counted_origin import CountedOrigin, counted_origin
from .model import LAYERS, run_ranks, write_model

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(110)]


@pytest.fixture(autouse=True)
def _needs_fuse(needs_fuse: None) -> None:
    """Mark all tests here."""


Begin = Callable[..., tuple[Host, CountedOrigin]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Call with settings of the node: a model behind a web server, mounted and cold."""
    hosts: list[Host] = []
    folder = tmp_path / "host"
    folder.mkdir()
    truth = folder / "truth"
    with counted_origin(truth, delay_s=0.02) as origin:

        def run(**settings: object) -> tuple[Host, CountedOrigin]:
            host = Host(folder, **settings)
            hosts.append(host)
            write_model(truth)
            host.up(origin.url, host.mount)
            return host, origin

        yield run
        for member in hosts:
            member.close()


def assert_sent_once(host: Host, origin: CountedOrigin) -> None:
    """Each byte of each shard left the origin, and none twice."""
    for file in host.truth.glob("*.safetensors"):
        sent = sorted((start, end) for name, start, end in origin.sent if name == file.name)
        ends = [0, *(end for _, end in sent)]
        assert [start for start, _ in sent] == ends[:-1], (file.name, sent)
        assert ends[-1] == file.stat().st_size


@pytest.mark.parametrize("how", ["plain", "ours"])
def test_eight_ranks_fetch_a_model_once(begin: Begin, how: str) -> None:
    host, origin = begin(fill_range_bytes="2MiB")
    run_ranks(host, how, host.mount, 8)
    assert_sent_once(host, origin)
    assert origin.in_flight_max >= 4


def socket_of(host: Host) -> str:
    (path,) = host.run_folder.glob("*.sock")
    return str(path)


def test_a_model_by_its_url_needs_no_mount(begin: Begin) -> None:
    host, origin = begin()
    run_ranks(host, "url", f"{socket_of(host)},headrace:///", 2)
    assert_sent_once(host, origin)


def test_what_is_loaded_stays_when_it_is_freed_and_replaced(begin: Begin) -> None:
    host, _ = begin(sync_interval_s=3600)
    model = load_model("headrace:///", socket=socket_of(host))
    before = {name: tensor.clone() for name, tensor in model.items()}
    host.ok("free", "/")
    write_model(host.truth, seed=1)
    host.ok("sync", "/")
    for name, tensor in model.items():
        assert torch.equal(tensor, before[name])
    run_ranks(host, "ours", host.mount, 2)
    host.assert_right()
    name = next(iter(model))
    model[name].fill_(7)  # of this process's memory only
    host.assert_right()


def test_what_was_written_on_this_host_is_loaded_too(begin: Begin) -> None:
    host, _ = begin(write="local")
    copying = ["cp", "-r", "--preserve=all", f"{host.truth}/.", f"{host.mount}/copy"]
    subprocess.run(copying, check=True, timeout=30)
    run_ranks(host, "written", host.mount / "copy", 2)
    run_ranks(host, "ours", host.mount, 2)
    away = host.base / "away"  # a copy, with all attributes, of what the mount shows is no file of the mount
    subprocess.run(["cp", "-r", "--preserve=all", str(host.mount), away], check=True, timeout=30)
    for file in away.glob("*.safetensors"):  # not even one that says so
        os.setxattr(file, SOCKET_ATTRIBUTE, os.fsencode(socket_of(host)))
    run_ranks(host, "written", away, 2)


def test_only_the_files_that_are_wanted_are_fetched(begin: Begin) -> None:
    host, origin = begin()
    tensors = load_model("headrace:///", only=["layers.1.*"], socket=socket_of(host))
    assert sorted(tensors) == sorted([*(f"layers.1.{layer}" for layer in range(LAYERS)), "layers.1.bias"])
    sent = {name for name, _, _ in origin.sent if name.endswith(".safetensors")}
    assert sent == {"model-00002-of-00003.safetensors"}


def test_one_that_is_given_up_ends_and_leaves_the_node_well(begin: Begin) -> None:
    host, _ = begin()
    coming = iter_model("headrace:///", socket=socket_of(host))
    name, tensor = next(coming)
    coming.close()
    assert torch.equal(tensor, load_model(host.truth)[name])
    run_ranks(host, "ours", host.mount, 1)
