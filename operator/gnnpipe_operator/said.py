"""What pods say. It is written by whatever runs in them, so it may be anything at all."""

from __future__ import annotations

import json
from typing import Any


def read_said(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object in a pod's words; None where they are none."""
    try:
        said = json.loads(text)
    except (
        ValueError,
        RecursionError,
    ):  # the latter: a few thousand brackets, and nobody may stop the operator so
        return None
    return said if isinstance(said, dict) else None
