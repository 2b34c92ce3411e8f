"""`gnnpipe plan`: what a job will cost before it runs."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.job import GNNPipeJob
from gnnpipe_api.plan import make_plan
from gnnpipe_trainer.graph.cache import default_folder
from gnnpipe_trainer.planning.choose import choose
from gnnpipe_trainer.planning.forecast import Planner
from gnnpipe_trainer.planning.from_run import fit_to_run, read_run
from gnnpipe_trainer.planning.graphs import Graph, RealGraph, SizedGraph
from gnnpipe_trainer.planning.hardware import CPU, DEFAULT, KNOWN, Hardware
from gnnpipe_trainer.planning.shape import ModelShape, built_in_shape
from gnnpipe_trainer.planning.simulate import Cores
from gnnpipe_trainer.planning.stored import load_calibration

PICTURES = (".png", ".svg")


@dataclass(frozen=True)
class Sizes:
    """What is known of a graph that is not here."""

    vertices: int
    edges: int
    features: int


def plan_command(job: GNNPipeJob, given: Namespace) -> int:
    """From the command line's arguments."""
    asked = (given.vertices, given.edges, given.features)
    if any(size is not None for size in asked) and any(size is None for size in asked):
        sys.stderr.write("--vertices, --edges and --features describe a graph together; give all three\n")
        return ExitCode.INVALID
    for name, size in zip(("vertices", "edges", "features"), asked, strict=True):
        if size is not None and size < 1:
            sys.stderr.write(f"--{name} is {size}; give at least 1\n")
            return ExitCode.INVALID
    return main(
        job,
        manifest=given.job,
        as_json=given.json,
        gpus=given.gpus,
        sizes=Sizes(*asked) if all(asked) else None,
        hardware=given.hardware,
        plot=given.plot,
        calibrate=given.calibrate,
        from_run=given.from_run,
    )


class BadRequest(ValueError):
    """What was asked for on the command line cannot be answered; the sentence says why."""


def main(
    job: GNNPipeJob,
    *,
    manifest: Path,
    as_json: bool = False,
    gpus: int | None = None,
    sizes: Sizes | None = None,
    hardware: str | None = None,
    plot: Path | None = None,
    calibrate: bool = False,
    from_run: Path | None = None,
) -> int:
    """Forecast the plans of a job and recommend one; returns the exit code of the contract."""
    if plot is not None and plot.suffix not in PICTURES:
        sys.stderr.write(f"--plot: {plot} is no picture; let its name end with {' or '.join(PICTURES)}\n")
        return ExitCode.INVALID
    if calibrate:
        from gnnpipe_trainer.planning.calibrate import calibrate as measure

        measure()
    try:
        planner = make_planner(job, manifest.parent, sizes, hardware)
        if from_run is not None:
            planner = fit_to_run(planner, read_run(from_run, job.name, job.spec.model.layers), from_run)
        ranks = make_plan(job).ranks if gpus is None else gpus
        if ranks < 1:
            raise BadRequest(f"--gpus is {ranks}; give at least 1")
        choice = choose(planner, ranks)
    except ValueError as mistake:  # BadGraph, BadModel, BadRequest, NoRun
        sys.stderr.write(f"{mistake}\n")
        return ExitCode.INVALID
    from gnnpipe_trainer.planning.show import as_dict, show

    if plot is not None:
        from gnnpipe_trainer.planning.plot import plot as draw

        try:
            draw(planner, choice, plot)
        except OSError as error:
            sys.stderr.write(f"--plot: {plot} cannot be written ({error.strerror}); name another file\n")
            return ExitCode.INVALID
    if as_json:
        sys.stdout.write(json.dumps(as_dict(planner, choice), indent=2) + "\n")
    else:
        show(planner, choice, str(manifest))
    return ExitCode.DONE


def make_planner(
    job: GNNPipeJob, manifest_folder: Path, sizes: Sizes | None = None, hardware: str | None = None
) -> Planner:
    graph = _graph(job, manifest_folder, sizes)
    return Planner(job, model_shape(job, graph, manifest_folder), graph, pick_hardware(job, hardware))


def model_shape(job: GNNPipeJob, graph: Graph, manifest_folder: Path) -> ModelShape:
    if job.spec.model.is_built_in:
        return built_in_shape(job.spec.model, graph.features, graph.classes)
    from gnnpipe_trainer.models.build import build_model
    from gnnpipe_trainer.planning.own_shape import shape_of

    model = build_model(job.spec.model, graph.features, graph.classes, manifest_folder)
    return shape_of(model, graph.features, graph.classes)


def pick_hardware(job: GNNPipeJob, name: str | None) -> Hardware:
    """By name; else the machine at hand for a job that asks for CPUs, and a common GPU for others."""
    if name == "cpu" or (name is None and job.spec.training.device == "cpu"):
        return load_calibration(default_folder()) or replace(CPU, cores=Cores(len(os.sched_getaffinity(0))))
    if name is None:
        return KNOWN[DEFAULT]
    if name not in KNOWN:
        raise BadRequest(f"--hardware: {name!r} is not known; use cpu, {', '.join(KNOWN)}")
    return KNOWN[name]


def _graph(job: GNNPipeJob, manifest_folder: Path, sizes: Sizes | None) -> Graph:
    if sizes is not None:
        return SizedGraph(sizes.vertices, sizes.edges, sizes.features, job.spec.graph.classes)
    return RealGraph(job.spec.graph, manifest_folder)
