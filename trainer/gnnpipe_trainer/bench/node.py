"""One machine of a run: starts its ranks and waits for them. A benchmark starts one of these per (emulated) machine."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from gnnpipe_api.contract import ExitCode
from gnnpipe_trainer.endings import die_with_parent
from gnnpipe_trainer.launch import Place, launch, rank_nursery


def main() -> int:
    """`python -m gnnpipe_trainer.bench.node PLACE MANIFEST OUT FOLDER SCRATCH`; PLACE is a launch.Place in JSON."""
    die_with_parent(signal.SIGTERM)
    words, *paths = sys.argv[1:]
    place = Place(**json.loads(words))
    manifest, out, folder, scratch = map(Path, paths)
    with rank_nursery(place) as nursery:
        outcome = launch(place, nursery, manifest, out, folder, scratch)
    if outcome.code != ExitCode.DONE:
        sys.stderr.write(f"{outcome.sentence}\n")
    return outcome.code


if __name__ == "__main__":
    sys.exit(main())
