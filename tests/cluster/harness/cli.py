"""`python -m harness`: what `make cluster-up`, `make cluster-down` and `make test` call."""

from __future__ import annotations

import argparse
import os
import sys

from . import binaries
from .errors import NoCluster


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m harness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binaries", help="find or build what the control plane needs, and stop there")
    arguments = parser.parse_args()
    sys.exit({"binaries": find_binaries}[arguments.command]())


def find_binaries() -> int:
    """Before `make test`: so that the build is seen, and counts in no test's time limit."""
    try:
        binaries.find(binaries.CONTROL_PLANE)
    except NoCluster as error:
        binaries.say(f"none to be had here, the tests that need it will be skipped: {error}")
        return 1 if os.environ.get("GNNPIPE_REQUIRE_CLUSTER") == "1" else 0
    return 0
