"""The same manifest trained by `gnnpipe run` on this machine: what a job on the cluster must equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

RUN_SECONDS = 600  # half a minute on an idle machine


@dataclass(frozen=True)
class Trained:
    """What a training left in its folder."""

    folder: Path

    @property
    def is_whole(self) -> bool:
        return (self.folder / "result.json").exists()

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = torch.load(self.folder / "model.pt", weights_only=True)
        return state

    @property
    def losses(self) -> dict[int, float]:
        lines = [json.loads(line) for line in (self.folder / "epochs.jsonl").read_text().splitlines()]
        return {line["epoch"]: line["loss"] for line in lines}


def run_locally(manifest: dict[str, Any], folder: Path, beside: Path | None = None) -> Trained:
    """`gnnpipe run`; files in the folder `beside` (a model of one's own) are laid beside the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in beside.glob("*.py") if beside else ():
        (folder / file.name).write_bytes(file.read_bytes())
    job = folder / "job.json"
    job.write_text(json.dumps(manifest))
    command = [Path(sys.executable).with_name("gnnpipe"), "run", job, "--out", folder / "out"]
    done = subprocess.run(
        command,
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"gnnpipe run failed:\n{done.stdout}{done.stderr}"
    return Trained(folder / "out")


def assert_identical(on_cluster: Trained, here: Trained) -> None:
    """Bit for bit: every tensor, every epoch's loss, every accuracy."""
    theirs, ours = on_cluster.weights, here.weights
    assert theirs.keys() == ours.keys()
    different = [name for name in ours if not _same_bits(theirs[name], ours[name])]
    assert different == [], f"tensors that differ from the local run: {different}"
    assert on_cluster.losses == here.losses
    for part in ("accuracy", "loss", "bestEpoch", "epochs"):  # the cut into stages is measured and may differ
        assert on_cluster.result[part] == here.result[part], part


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.numpy().tobytes() == other.numpy().tobytes()
    )
