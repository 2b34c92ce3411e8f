"""A machine's calibration in the cache folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gnnpipe_trainer.planning.hardware import Costs, Hardware, Link
from gnnpipe_trainer.planning.simulate import Cores
from gnnpipe_trainer.whole_file import write_whole

FORMAT = 8  # raise when Costs or the way work is counted or timed changes: old measurements mean something else then
FILE = "calibration.json"


def save_calibration(hardware: Hardware, folder: Path) -> None:
    """Two runs of the command may do so at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"format": FORMAT, "hardware": asdict(hardware)}, indent=2) + "\n"
    write_whole(folder / FILE, content, writer=str(os.getpid()))


def load_calibration(folder: Path) -> Hardware | None:
    """None where this machine was not measured, or by another version."""
    try:
        content: dict[str, Any] = json.loads((folder / FILE).read_text())
        if content["format"] != FORMAT:
            return None
        fields = content["hardware"]
        return Hardware(
            **{
                **fields,
                "costs": Costs(**fields["costs"]),
                "near": Link(**fields["near"]),
                "far": Link(**fields["far"]),
                "swapping": fields["swapping"] and Link(**fields["swapping"]),
                "cores": Cores(**fields["cores"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
