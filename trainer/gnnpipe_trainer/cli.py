"""The `gnnpipe` command: reads the command line and hands over. Each subcommand is one function below.

What needs torch is imported only by the subcommand that uses it, so that `gnnpipe validate` answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from gnnpipe_api.contract import ExitCode
from gnnpipe_api.load import InvalidJob, load_job, parse_job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code of the contract."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.command(given))
    except InvalidJob as invalid:
        sys.stderr.write(f"{invalid}\n")
        return ExitCode.INVALID
    except BrokenPipeError:  # `gnnpipe crd | head`: whoever read has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE


def run(given: argparse.Namespace) -> int:
    """Train here."""
    job = load_job(given.job, given.overrides)
    from gnnpipe_trainer.run import run_job

    return run_job(
        job,
        given.out or Path("runs") / job.name,
        fresh=given.fresh,
        compare=given.compare,
        profile=given.profile,
        manifest_folder=given.job.parent,
    )


def validate(given: argparse.Namespace) -> int:
    """Say that a manifest is right, or everything that is wrong with it."""
    job = load_job(given.job, given.overrides)
    from gnnpipe_api.plan import make_plan

    plan = make_plan(job)
    layers = "+".join(map(str, plan.layers_per_stage))
    cut = f"stages {plan.stages} (layers {layers}), ways {plan.ways}, chunks {plan.chunks}"
    if job.spec.parallelism.has_auto:
        cut = "what is auto is settled by the planner when the job starts"
    sys.stdout.write(f"{given.job} is valid: {cut}.\n")
    return ExitCode.DONE


def crd(given: argparse.Namespace) -> int:
    """Print the CustomResourceDefinition."""
    from gnnpipe_api.crd import crd as definition

    sys.stdout.write(yaml.safe_dump(definition(cel=given.cel), sort_keys=False, width=110))
    return ExitCode.DONE


def docs(given: argparse.Namespace) -> int:
    """Print docs/manifest.md."""
    from gnnpipe_api.reference import manifest_reference

    sys.stdout.write(manifest_reference())
    return ExitCode.DONE


def plan(given: argparse.Namespace) -> int:
    """Forecast bytes, memory and time of the ways to cut a job."""
    job = load_job(given.job, given.overrides)
    planning = import_module("gnnpipe_trainer.planning")
    return int(planning.plan_command(job, given))


def evaluate(given: argparse.Namespace) -> int:
    """Exact accuracies of saved weights."""
    job = load_job(given.job, given.overrides)
    evaluation = import_module("gnnpipe_trainer.evaluate")
    return int(evaluation.evaluate_model(job, given.model, manifest_folder=given.job.parent))


def report(given: argparse.Namespace) -> int:
    """Show the final table of a finished run again, and draw its course as a page."""
    from gnnpipe_trainer.report_page import write_page
    from gnnpipe_trainer.view import final_table, show_error

    result = _result(given.out)
    if result is None:
        show_error(f"There is no result.json in {given.out}; name the --out folder of a finished run.")
        return ExitCode.INVALID
    compared = _result(given.compare or given.out / "full-batch")
    if (page := write_page(given.out)) is not None:
        sys.stdout.write(f"The run's course is drawn in {page}\n")
    final_table(result, compared, result.get("graphParallelBytes"))
    return ExitCode.DONE


def bench(given: argparse.Namespace) -> int:
    """Measure; what can be measured is up to the benchmarks."""
    benchmarks = import_module("gnnpipe_trainer.bench")
    return int(benchmarks.main(given.arguments))


def worker(given: argparse.Namespace) -> int:
    """A pod's main process: trains as the stage that its environment says."""
    # Imports take seconds, and the kernel spares a container's first process every signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(ExitCode.PREEMPTED))
    import_module("gnnpipe_trainer.rank_environment").enter(_ranks_of_pod())
    pod = import_module("gnnpipe_trainer.worker_pod")
    return int(pod.main())


def planner(given: argparse.Namespace) -> int:
    """The main process of the pod that settles auto, before a job's stages have pods."""
    # There is nothing to save at any time.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(ExitCode.PREEMPTED))
    return int(import_module("gnnpipe_trainer.planner_pod").main())


def _ranks_of_pod() -> int:
    """Of the whole job; 1 where its environment is wrong, which is told when the rest is read."""
    from gnnpipe_api.contract import ENV_MANIFEST
    from gnnpipe_api.plan import make_plan

    try:
        return make_plan(parse_job(json.loads(os.environ[ENV_MANIFEST]))).ranks
    except (KeyError, ValueError):
        return 1


def _result(out: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gnnpipe",
        description="Trains deep graph neural networks whose layers are cut into pipeline stages.",
        epilog="Exit codes: 0 done, 1 training failed, 2 the manifest or the data is wrong.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, function: Any, about: str, *, takes_job: bool = False) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=about, description=about, add_help=name != "bench")
        sub.set_defaults(command=function)
        if takes_job:
            sub.add_argument("job", type=Path, metavar="JOB", help="the manifest, a YAML file")
            sub.add_argument(
                *("--set", "-s"),
                action="append",
                default=[],
                dest="overrides",
                metavar="PATH=VALUE",
                help="change a field first, for example spec.training.epochs=5; may be repeated",
            )
        return sub

    sub = command("run", run, "train a job on this machine, one process per rank", takes_job=True)
    sub.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for results (default: runs/<name of the job>)"
    )
    sub.add_argument("--fresh", action="store_true", help="begin anew, even if DIR holds a checkpoint")
    sub.add_argument("--compare", action="store_true", help="train in plain full batch too and compare")
    sub.add_argument("--profile", action="store_true", help="record where the time goes")

    command("validate", validate, "check a manifest", takes_job=True)

    sub = command("plan", plan, "forecast bytes, memory and time, and recommend a cut", takes_job=True)
    sub.add_argument("--json", action="store_true", help="for programs")
    sub.add_argument("--gpus", type=int, metavar="N", help="ranks to use (default: as in the manifest)")
    sub.add_argument(
        "--hardware",
        metavar="NAME",
        help="for example a100-100g, h100-400g, or cpu (default: by the manifest)",
    )
    for size in ("vertices", "edges", "features"):
        sub.add_argument(f"--{size}", type=int, metavar="N", help=f"{size} of a graph that is not here")
    sub.add_argument("--plot", type=Path, metavar="PNG", help="draw the recommended pipeline and its rivals")
    sub.add_argument(
        "--calibrate", action="store_true", help="measure this machine first (about 10 s); it is remembered"
    )
    sub.add_argument(
        "--from-run",
        type=Path,
        metavar="DIR",
        help="machines as a finished run of this job shows them: its --out folder",
    )

    sub = command("evaluate", evaluate, "exact accuracies of a trained model", takes_job=True)
    sub.add_argument("--model", type=Path, required=True, metavar="FILE", help="model.pt of a run")

    sub = command("report", report, "show the final table of a run again and draw its course as report.html")
    sub.add_argument("out", type=Path, metavar="DIR", help="the run's --out folder")
    sub.add_argument("--compare", type=Path, metavar="DIR", help="another run to compare with")

    sub = command("crd", crd, "print the CustomResourceDefinition for kubectl apply")
    sub.add_argument("--cel", action="store_true", help="with CEL rules, for Kubernetes 1.25 and newer")

    command("docs", docs, "print the reference of all fields of a manifest, in Markdown")

    sub = command("bench", bench, "run a benchmark")
    sub.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="see gnnpipe bench --help")

    command("worker", worker, "train as one stage inside a pod (called by the operator)")
    command("planner", planner, "settle what is auto inside a pod (called by the operator)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
