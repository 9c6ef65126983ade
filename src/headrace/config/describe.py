"""Render the settings as a page: docs/configuration.md, and `headrace config explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from headrace.base.sizes import show_size
from headrace.config.load import SIZES, variable_of
from headrace.config.schema import Config

_HEAD = """# Configuration

Written by `./dev docs` from `src/headrace/config/schema.py`: don't edit.

A setting is taken from the last of these that has it: its default, `/etc/headrace/headrace.toml`,
`~/.config/headrace/headrace.toml`, the file of `--config`, the environment, a flag. An unknown name in a file is an
error. Sizes, and rates in bytes per second, are numbers of bytes or have a unit: `64MiB` and `64M` are powers of 1024,
`64MB` of 1000.

| setting | environment | default | meaning |
|---|---|---|---|
"""

_TAIL = """
## A file

```toml
cache = ["/nvme0/headrace:800GiB", "/nvme1/headrace:800GiB"]
sync_interval_s = 300

[mounts."/imagenet"]
url = "s3://training-data/imagenet"
options = { region = "eu-central-1" }
```

A cache without a size takes half of the space that is free on the disk at the first start, and keeps that size.
An entry of `cache` may also be a table. Only `folder` is required:

```toml
cache = [{ folder = "/nvme0/c", capacity_bytes = "1TiB", tier = "nvme", writes_a_day = "2TiB" }]
```

The options of a mount are described in [origins.md](origins.md#options-of-a-mount).
`headrace config show` prints the settings in force and their sources; it shows no secrets.
"""

_DEFAULTS = {
    "cache": "`~/.cache/headrace`, half of the free space",
    "run_folder": "`/run/headrace` for root, else `$XDG_RUNTIME_DIR/headrace`, or `/tmp/headrace-UID/headrace` "
    "without that variable",
    "mounts": "none",
}


@dataclass(frozen=True, slots=True)
class SettingText:
    """One row of the table, as text."""

    name: str
    variable: str
    default: str
    meaning: str


def settings() -> list[SettingText]:
    """Return all settings in the order of `Config`."""
    hints = get_type_hints(Config, include_extras=True)
    return [
        SettingText(
            name=field.name,
            variable=variable_of(field.name) or "",
            default=_DEFAULTS.get(field.name) or f"`{_default_text(field.name, field.default)}`",
            meaning=_meaning(hints[field.name]),
        )
        for field in msgspec.structs.fields(Config)
    ]


def page() -> str:
    """Return docs/configuration.md."""
    rows = [
        f"| `{s.name}` | {f'`{s.variable}`' if s.variable else ''} | {s.default} | {s.meaning} |"
        for s in settings()
    ]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL


def _meaning(hint: Any) -> str:
    meta: msgspec.Meta = hint.__metadata__[0]
    return meta.description or ""


def _default_text(name: str, default: Any) -> str:
    if name.endswith(SIZES):
        return show_size(default).replace(".00", "").replace(".0", "")
    return str(default)
