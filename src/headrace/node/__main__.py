"""Run a node as a process: `python -m headrace.node --config-json FILE [--ready-fd N] [--again]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace.base.uninterrupted import uninterrupted

with uninterrupted():
    from headrace.base.decoding import decode_json
    from headrace.config.schema import Config
    from headrace.node.node import run_node


def main() -> int:
    parser = argparse.ArgumentParser(prog="headrace.node")
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument(
        "--again", action="store_true", help="The node ran before: start even when an origin is unavailable."
    )
    arguments = parser.parse_args()
    config = decode_json(Path(arguments.config_json).read_bytes(), Config)
    return run_node(config, ready_fd=arguments.ready_fd, again=arguments.again)


if __name__ == "__main__":
    sys.exit(main())
