"""Runs one mode in fresh processes, one thread each, and reads what it did."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import gnnpipe_api
import gnnpipe_trainer
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.bench.dgl_venv import dgl_python
from gnnpipe_trainer.bench.epochs import Figures
from gnnpipe_trainer.bench.link import Machine, emulated_link
from gnnpipe_trainer.bench.modes import Mode
from gnnpipe_trainer.bench.plain import edge_index_of, tensor_of
from gnnpipe_trainer.endings import PARENT
from gnnpipe_trainer.graph.cache import chunked_graph
from gnnpipe_trainer.launch import Place
from gnnpipe_trainer.models.build import build_model
from gnnpipe_trainer.models.layers import conv_widths
from gnnpipe_trainer.models.plain import plain_network
from gnnpipe_trainer.rank_environment import ONE_THREAD
from gnnpipe_trainer.report import KINDS

MASTER_PORT = 29500  # in a namespace of the benchmark's own, where nobody else is
POLL_SECONDS = 0.1


class RunFailed(RuntimeError):
    """A mode did not come to its end; the message has the last lines of its log."""


def measure(mode: Mode, job: GNNPipeJob, epochs: int, manifest_folder: Path, out: Path) -> Figures:
    """Train `epochs` epochs in this mode; `out` is a folder of its own and empty."""
    out.mkdir(parents=True)
    job = mode.job(job, epochs)
    if mode.program is None:
        return _measure_ranks(mode, job, manifest_folder, out)
    task: dict[str, Any] = {
        "manifest": job.manifest(),
        "folder": str(manifest_folder.resolve()),
        "epochs": epochs,
    }
    python = sys.executable
    if mode.program == "dgl_process":
        python = str(dgl_python())
        task["problem"] = str(out / "problem.pt")
        torch.save(problem_for_dgl(job, manifest_folder), task["problem"])
    (out / "task.json").write_text(json.dumps({**task, **mode.options}))
    module = f"gnnpipe_trainer.bench.{mode.program}"
    results = [out / f"result-{number}.json" for number in range(mode.copies)]
    commands = [[python, "-m", module, str(out / "task.json"), str(result)] for result in results]
    _run_together(commands, [{"PYTHONPATH": _code_folders()}] * mode.copies, out)
    return _together([Figures(**json.loads(result.read_text())) for result in results])


def _together(copies: list[Figures]) -> Figures:
    """Each epoch's mean over copies that ran at the same time."""
    return replace(
        copies[0],
        seconds=[statistics.mean(seconds) for seconds in zip(*(c.seconds for c in copies), strict=True)],
        memory_bytes=[peak for copy in copies for peak in copy.memory_bytes],
        cpu_seconds=[statistics.mean(s) for s in zip(*(c.cpu_seconds for c in copies), strict=True)],
    )


def _measure_ranks(mode: Mode, job: GNNPipeJob, manifest_folder: Path, out: Path) -> Figures:
    plan = make_plan(job)
    chunked_graph(
        job.spec.graph, plan.ways, plan.chunks, manifest_folder
    )  # in the cache before ranks ask for it
    manifest = out / "manifest.json"
    manifest.write_text(json.dumps(job.manifest()))
    with ExitStack() as stack:
        machines: tuple[Machine, ...] = ()
        if mode.rate is not None:
            machines = stack.enter_context(emulated_link(mode.rate))
        commands, environments = [], []
        for number in range(len(machines) or 1):
            scratch = out / f"machine{number}"
            scratch.mkdir()
            place = _place(plan.ranks, machines, number)
            paths = [str(path.resolve()) for path in (manifest, out, manifest_folder, scratch)]
            command = [
                *(sys.executable, "-m", "gnnpipe_trainer.bench.node"),
                *(json.dumps(asdict(place)), *paths),
            ]
            commands.append(machines[number].command(command) if machines else command)
            interface = machines[number].interface if machines else "lo"
            environments.append(
                {"GLOO_SOCKET_IFNAME": interface, "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor")}
            )
        _run_together(commands, environments, out)
    return _figures(out)


def _place(ranks: int, machines: tuple[Machine, ...], number: int) -> Place:
    """All ranks here, or each half of them on its machine: the first stages on the first one."""
    if not machines:
        return Place(ranks)
    return Place(ranks // len(machines), len(machines), number, machines[0].address, MASTER_PORT)


def _figures(out: Path) -> Figures:
    lines = [json.loads(line) for line in (out / "epochs.jsonl").read_text().splitlines()]
    result = json.loads((out / "result.json").read_text())
    return Figures(
        [line["seconds"] for line in lines],
        [line["loss"] for line in lines],
        result["peakMemoryBytes"],
        [statistics.mean(line["idle"]) for line in lines],
        {kind: lines[-1]["bytes"][kind] for kind in KINDS},
    )


def problem_for_dgl(job: GNNPipeJob, manifest_folder: Path) -> dict[str, Any]:
    """Graph, sizes and first weights as plain tensors, for a process that does not know GNNPipe."""
    spec = job.spec.model
    graph = chunked_graph(job.spec.graph, 1, 1, manifest_folder)
    torch.manual_seed(job.spec.training.seed)
    model = build_model(spec, graph.num_features, graph.num_classes, manifest_folder)
    network = plain_network(spec, graph.num_features, graph.num_classes)
    network.load_from(model)
    return {
        "kind": spec.kind,
        "widths": conv_widths(graph.num_features, spec.hidden, graph.num_classes, spec.layers),
        "dropout": spec.dropout,
        "learning_rate": job.spec.training.learning_rate,
        "weights": dict(network.state_dict()),
        "edge_index": edge_index_of(graph),
        "features": tensor_of(graph.features),
        "labels": tensor_of(graph.labels),
        "mask": tensor_of(graph.train_mask),
    }


def _run_together(commands: list[list[str]], environments: list[dict[str, str]], out: Path) -> None:
    """Start all, wait for all; when one fails the others are ended too."""
    log = out / "train.log"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as stream:
            for command, extra in zip(commands, environments, strict=True):
                environment = {**os.environ, **ONE_THREAD, **extra, PARENT: str(os.getpid())}
                process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
                processes.append(process)
        while any(process.poll() is None for process in processes):
            if any(process.returncode for process in processes):
                break
            time.sleep(POLL_SECONDS)
        if any(process.returncode for process in processes):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            raise RunFailed(f"it ended early; the end of {log}:\n{tail}")
    finally:
        for process in processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _code_folders() -> str:
    """Of this code and not of another installed one, whatever the program's Python would find."""
    return os.pathsep.join(str(Path(str(p.__file__)).parents[1]) for p in (gnnpipe_trainer, gnnpipe_api))
