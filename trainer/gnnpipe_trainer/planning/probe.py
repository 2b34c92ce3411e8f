"""What a calibration runs: `python -m gnnpipe_trainer.planning.probe CORES PORT FOLDER`.

The small jobs' graphs are made by one process while this one loads torch; then it becomes the ranks of ranks.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gnnpipe_trainer.planning.runs import make_graphs


def main() -> int:
    cores, port = map(int, sys.argv[1:3])
    folder = Path(sys.argv[3])
    maker = os.fork()
    if maker == 0:
        make_graphs(folder, cores)
        os._exit(0)
    from gnnpipe_trainer.planning.ranks import run_ranks  # torch: seconds, in which graphs are made

    if os.waitpid(maker, 0)[1] != 0:
        return 1  # it has said why
    return run_ranks(cores, port, folder)


if __name__ == "__main__":
    sys.exit(main())
