"""What every pod's main process does alike: read its job, and leave a last word.

The names in the environment are the contract with the operator (gnnpipe_api/contract.py).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from gnnpipe_api import contract
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.load import InvalidJob, Problem, parse_job

log = logging.getLogger("gnnpipe")

ENV_TERMINATION_MESSAGE = "GNNPIPE_TERMINATION_MESSAGE"  # where a pod is not what it usually is; tests use it
MESSAGE_BYTES = 4096  # Kubernetes keeps no more of a termination message


def read_job(environment: Mapping[str, str]) -> GNNPipeJob:
    """Raises InvalidJob where the environment is not what an operator writes."""
    try:
        return parse_job(json.loads(environment[contract.ENV_MANIFEST]))
    except KeyError as missing:
        raise wrong(f"{missing.args[0]} is not set; pods are started by the operator") from None
    except json.JSONDecodeError as error:
        raise wrong(f"{contract.ENV_MANIFEST} is not JSON: {error}") from None


def code_folder() -> Path:
    """Where a person's own model lies."""
    mounted = Path(contract.CODE_MOUNT)
    return mounted if mounted.is_dir() else Path.cwd()


def leave_word(message: str) -> None:
    """The last thing a pod says: one line, where Kubernetes looks for it."""
    path = os.environ.get(ENV_TERMINATION_MESSAGE, contract.TERMINATION_MESSAGE)
    line = " ".join(message.split())
    try:
        Path(path).write_bytes(line.encode()[:MESSAGE_BYTES].decode(errors="ignore").encode())
    except OSError as error:
        log.warning("No termination message: %s", error)


def compact(content: object) -> str:
    return json.dumps(content, separators=(",", ":"))


def wrong(sentence: str) -> InvalidJob:
    return InvalidJob([Problem("", sentence)])
