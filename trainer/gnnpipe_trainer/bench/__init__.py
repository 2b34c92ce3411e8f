"""`gnnpipe bench`: measures GNNPipe, and what it is compared with, side by side on this machine."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run a benchmark; returns the exit code of the contract."""
    from gnnpipe_trainer.bench.command import run_command  # late: DGL's process imports this package too

    return run_command(arguments)
