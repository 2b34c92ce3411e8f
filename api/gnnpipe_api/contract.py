"""What the operator puts into a pod and what the trainer in it may rely on.

Operator and trainer never import each other; these names are all they share besides the manifest.
"""

from __future__ import annotations

from enum import IntEnum

GROUP = "gnnpipe.io"
VERSION = "v1alpha1"
KIND = "GNNPipeJob"
PLURAL = "gnnpipejobs"


class ExitCode(IntEnum):
    """How a trainer process (and so its container) ends."""

    DONE = 0
    FAILED = 1
    INVALID = 2  # the manifest or the data is wrong: retrying cannot help
    PREEMPTED = 75  # SIGTERM: checkpointed and left; does not use up backoffLimit
    LOST_PEER = 76  # a pod whose own ranks were well: one of another pod is gone or does not answer


# Environment of every worker container; one that plans has no stage, no master and no folder for results. The names
# are reserved: a pod template may not set them.
ENV_MANIFEST = "GNNPIPE_MANIFEST"  # the whole GNNPipeJob as JSON
ENV_STAGE = "GNNPIPE_STAGE"  # this pod's stage, 0-based
ENV_ATTEMPT = "GNNPIPE_ATTEMPT"  # 0-based; goes up with each restart of the gang
ENV_MASTER_ADDR = "GNNPIPE_MASTER_ADDR"  # DNS name of stage 0
ENV_MASTER_PORT = "GNNPIPE_MASTER_PORT"
ENV_OUT = "GNNPIPE_OUT"  # folder for result.json, epochs.jsonl, model.pt, checkpoints/
ENV_NAMESPACE = "GNNPIPE_NAMESPACE"
ENV_CACHE = "GNNPIPE_CACHE"  # where chunked graphs are kept
RESERVED_ENV_PREFIX = "GNNPIPE_"

TRAINER_CONTAINER = "trainer"
WORKER_COMMAND = ["gnnpipe", "worker"]
PLANNER_COMMAND = [
    "gnnpipe",
    "planner",
]  # of the pod that settles auto; its last word is a plan with its reason
MASTER_PORT = 29500
MONITOR_PORT = 9400  # /metrics, /progress, /healthz
MONITOR_PORT_NAME = "monitor"

CODE_MOUNT = "/gnnpipe/code"  # model.code.configMap; on the Python path
OUT_MOUNT = "/gnnpipe/out"  # checkpoint volume, or an emptyDir where the manifest names none
CACHE_MOUNT = "/gnnpipe/cache"  # chunked graphs; an emptyDir
SHM_MOUNT = "/dev/shm"  # memory-backed; NCCL and gloo need more than the container runtime gives
TERMINATION_MESSAGE = "/dev/termination-log"
