"""The fuzzers, by name. Each module has a list of them; it is imported when one of its names is asked for."""

from __future__ import annotations

import importlib

from tests.fuzz.fuzzer import Fuzzer

_MODULES = {
    "frames": ("host-requests", "host-answers", "peer-requests", "peer-answers", "broker-requests", "broker-answers"),
    "http": ("http-heads", "http-bodies"),
    "s3": ("s3-requests", "s3-bodies", "s3-chunks", "s3-forms", "s3-policies", "s3-xml"),
    "gateways": ("webhdfs-requests", "rest-requests", "rest-answers"),
    "settings": ("config", "write-modes", "sizes", "origin-urls"),
    "records": (
        "node-records", "job-records", "mount-records", "policy-records", "rate-records", "cost-records",
        "departed-records", "hot-records", "pin-records", "cover-records", "claim-records", "last-view",
        "written-tokens",
    ),
    "seals": ("sealed-records",),
    "images": ("images",),
    "sealed_data": ("seal-lists", "unpacked-lists", "seal-records", "origin-seals", "packed-lists"),
    "lazy_layer": ("lazy-names", "lazy-requests"),
    "checkpoints": ("manifests", "manifest-parts", "dcp-metadata", "packed-chunks", "safetensors"),
    "shards": ("shards",),
    "origins": ("retry-after", "etags", "origin-metadata", "index-pages", "far-answers", "far-urls"),
    "mounts": ("mount-requests",),
    "plans": ("plans",),
    "policies": ("policies",),
    "origin_events": ("azure-queue-answers", "sqs-answers", "pubsub-answers", "queue-errors", "origin-events"),
    "predictions": ("predictions",),
    "file_changes": ("file-changes",),
    "disks": (
        "index-values", "index-checkpoint", "block-maps", "attributes", "handover", "fuse-requests", "uploads",
        "written-bytes", "volume-records",
    ),
}  # fmt: skip
NAMES = tuple(name for names in _MODULES.values() for name in names)


def load(name: str) -> Fuzzer:
    module = next(module for module, names in _MODULES.items() if name in names)
    fuzzers: list[Fuzzer] = importlib.import_module(f"tests.fuzz.targets.{module}").FUZZERS
    return next(fuzzer for fuzzer in fuzzers if fuzzer.name == name)


def described() -> list[tuple[str, str]]:
    return [(name, load(name).about) for name in NAMES]
