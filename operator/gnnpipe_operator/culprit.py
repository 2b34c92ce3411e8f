"""Whose fault it was when every pod that ended says: I was well, and lost another one.

Survivors of a lost node end long before Kubernetes notices the loss, and those of a stage that fails may end a
moment before it does. So the others are given time to show what became of them, and are judged by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gnnpipe_operator.failure import Failure, Kind, name_of
from gnnpipe_operator.observed import ObservedPod

PATIENCE = timedelta(seconds=60)  # Kubernetes takes 40 to 50 seconds to notice that a node is lost


def culprit(victim: Failure, gang: Sequence[ObservedPod], since: datetime, now: datetime) -> Failure | None:
    """The failure that explains `victim`; None while it may still show. `since`: when victims were first seen."""
    silent = [pod for pod in gang if not pod.finished]
    if not silent:
        return Failure(Kind.ERROR, victim.reason, f"{victim.message}; so say all stages that ended badly")
    cut_off = next((pod for pod in silent if pod.node_lost), None)
    if cut_off is not None:
        return Failure(Kind.DISRUPTION, "NodeLost", f"{name_of(cut_off)}: its node does not answer")
    if since <= now < since + PATIENCE:  # a clock that was set back does not prolong it
        return None
    message = f"{name_of(silent[0])} neither answers the other stages nor ends"
    return Failure(Kind.ERROR, "StageSilent", f"{message}; {victim.message}")
