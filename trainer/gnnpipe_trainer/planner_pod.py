"""`gnnpipe planner`: the main process of the pod that settles `auto`, where the graph can be seen.

Its last word is the plan and why, as JSON; the operator puts the numbers into the job before any stage has a pod.
"""

from __future__ import annotations

import logging
import os
import sys

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import InvalidJob
from gnnpipe_api.plan import most_ranks
from gnnpipe_trainer.graph.data import BadGraph
from gnnpipe_trainer.models.block import BadModel
from gnnpipe_trainer.planning.choose import NoPlan
from gnnpipe_trainer.planning.settle import settle
from gnnpipe_trainer.pod import code_folder, compact, leave_word, read_job

log = logging.getLogger("gnnpipe")


def main() -> int:
    """Plan; the exit code and the termination message say how it went."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        job = read_job(os.environ)
        limit = most_ranks(job.spec.parallelism)
        log.info("Planning for at most %d ranks", limit)
        settled = settle(job, code_folder(), limit)
    except (InvalidJob, BadGraph, BadModel, NoPlan) as mistake:
        log.error("%s", mistake)
        leave_word(str(mistake))
        return ExitCode.INVALID
    log.info("Planned: %s. %s", settled.plan.in_words(), settled.reason)
    numbers = {"stages": settled.plan.stages, "ways": settled.plan.ways, "chunks": settled.plan.chunks}
    leave_word(compact({"plan": numbers, "reason": settled.reason}))
    return ExitCode.DONE
