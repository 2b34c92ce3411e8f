"""Plants one bug after the other into the operator's policies and asks the random histories whether they notice.

    python benchmarks/operator_mutants.py [--histories 300] [--only NAME ...]

Each mutant is a copy of the operator with one line changed; tests/operator/test_histories.py runs against it and
must fail. Prints one JSON object; exits with 1 where a mutant survived. About half a minute per survivor.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "operator" / "gnnpipe_operator"
HISTORIES = ROOT / "tests" / "operator" / "test_histories.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    before: str
    after: str


MUTANTS = [
    Mutant("old pods are not awaited", "waiting.py", "return backing_off or stopping", "return backing_off"),
    Mutant("back-off is not awaited", "waiting.py", "return backing_off or stopping", "return stopping"),
    Mutant(
        "old pods are not stopped",
        "decide.py",
        "    stop(story, stale, SURVIVOR_GRACE_SECONDS)\n    if len(gang)",
        "    if len(gang)",
    ),
    Mutant(
        "an old planner answers for a new cut",
        "decide.py",
        "if plan is None and (job.status.plan or not all(pod.plans for pod in gang)):",
        "if plan is None and not all(pod.plans for pod in gang):",
    ),
    Mutant(
        "a new cut keeps the old plan",
        "edits.py",
        'if plan is None or "parallelism" in _changed(job, job.status.accepted_spec or {}, parsed.spec):',
        "if plan is None:",
    ),
    Mutant(
        "a lost planner is not missed", "planning.py", "[PLANNER], policy, progress", "[], policy, progress"
    ),
    Mutant(
        "planning goes on though the job is planned",
        "edits.py",
        "return Accepted(dict(spec), settled, make_plan(settled), plan.reason)",
        "return Accepted(dict(spec), parsed, None)",
    ),
    Mutant(
        "a plan is believed that is none",
        "planning.py",
        '    numbers = said.get("plan")\n',
        '    numbers = said.get("plan", {"stages": 1, "ways": 1, "chunks": 1})\n',
    ),
    Mutant(
        "the attempt keeps its number", "setback.py", "attempt=status.attempt + 1", "attempt=status.attempt"
    ),
    Mutant(
        "a suspension keeps the attempt",
        "suspend.py",
        "status.attempt + 1 if gang_exists else status.attempt",
        "status.attempt",
    ),
    Mutant(
        "a suspended job keeps its pods",
        "decide.py",
        "    stop(story, [*gang, *stale], grace_seconds=None)\n",
        "",
    ),
    Mutant(
        "a suspension leaves no time",
        "decide.py",
        "stop(story, [*gang, *stale], grace_seconds=None)",
        "stop(story, [*gang, *stale], 5)",
    ),
    Mutant(
        "one restart too many",
        "restart.py",
        "if failures > backoff_limit:",
        "if failures > backoff_limit + 1:",
    ),
    Mutant(
        "one restart too few", "restart.py", "if failures > backoff_limit:", "if failures >= backoff_limit:"
    ),
    Mutant(
        "disruptions count",
        "restart.py",
        "if failure.kind is Kind.DISRUPTION:",
        "if failure.kind is Kind.VICTIM:",
    ),
    Mutant(
        "wrong data is tried again",
        "restart.py",
        "if failure.kind is Kind.INVALID:",
        "if failure.kind is None:",
    ),
    Mutant(
        "progress never clears the count",
        "restart.py",
        "saved_epoch > (status.failure_epoch or 0)",
        "saved_epoch < 0",
    ),
    Mutant(
        "any epoch clears the count",
        "restart.py",
        "return epoch - epoch % checkpoint.every_epochs",
        "return epoch",
    ),
    Mutant(
        "victims are culprits",
        "failure.py",
        'return Failure(Kind.VICTIM, "LostPeer"',
        'return Failure(Kind.ERROR, "LostPeer"',
    ),
    Mutant("silence is waited for for ever", "culprit.py", "if since <= now < since + PATIENCE:", "if True:"),
    Mutant("a lost node is not seen", "culprit.py", "if pod.node_lost", "if False"),
    Mutant("a missing pod is not missed", "setback.py", "    if missing is None:\n", "    if True:\n"),
    Mutant(
        "success needs one stage",
        "decide.py",
        "all(pod.succeeded for pod in gang)",
        "any(pod.succeeded for pod in gang)",
    ),
    Mutant("a finished job is judged on", "decide.py", "if job.status.finished:", "if False:"),
    Mutant(
        "time to live counts double",
        "ttl.py",
        "timedelta(seconds=ttl_seconds)",
        "timedelta(seconds=2 * ttl_seconds)",
    ),
    Mutant("time to live has no wake-up", "endings.py", "        story.wake(expires)\n", "        pass\n"),
    Mutant("time to live is not awaited", "endings.py", "story.now >= expires:", "True:"),
    Mutant("nothing is cleaned", "cleanup.py", 'if clean_pods == "All":', "if False:"),
    Mutant(
        "a trainer outlives its gang",
        "cleanup.py",
        "    return [pod for pod in pods if pod.phase not in",
        "    return []\n    return [pod for pod in pods if pod.phase not in",
    ),
    Mutant(
        "a lost node's pod stays",
        "cleanup.py",
        "elif now >= pod.deletion_deadline + FORCE_AFTER:",
        "elif False:",
    ),
    Mutant(
        "pods are forced at once",
        "cleanup.py",
        "elif now >= pod.deletion_deadline + FORCE_AFTER:",
        "elif now >= pod.deletion_deadline:",
    ),
    Mutant(
        "the deadline counts suspended time",
        "deadline.py",
        "limit_seconds + status.suspended_seconds",
        "limit_seconds",
    ),
    Mutant(
        "an edit comes into force while pods run",
        "edits.py",
        "part not in ALWAYS_EDITABLE",
        "part in FOR_LIFE",
    ),
    Mutant("a model may change", "edits.py", 'FOR_LIFE = ("graph", "model")', "FOR_LIFE = ()"),
    Mutant(
        "pods of an unknown spec are taken over",
        "decide.py",
        "any(pod.generation != job.generation for pod in gang)",
        "False",
    ),
    Mutant(
        "the status comes after the deletions", "reconcile.py", "        if changed:\n", "        if False:\n"
    ),
    Mutant(
        "an unfinished job is forgotten",
        "reconcile.py",
        "decision.wake_at or self._revisit(decision)",
        "decision.wake_at",
    ),
]


def survives(mutant: Mutant, histories: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        text = (copy / mutant.file).read_text()
        if text.count(mutant.before) != 1:
            raise SystemExit(f"{mutant.name}: {mutant.file} has no single {mutant.before!r}; mend the mutant")
        (copy / mutant.file).write_text(text.replace(mutant.before, mutant.after))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(HISTORIES)],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
                "GNNPIPE_HISTORIES": str(histories),
                "GNNPIPE_SHRINK": "0",
                "HYPOTHESIS_STORAGE_DIRECTORY": folder,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{mutant.name}: the tests could not run\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--histories", type=int, default=300, help="random histories per mutant")
    parser.add_argument("--only", nargs="*", help="names of mutants; left out: all")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not given.only or mutant.name in given.only]
    survivors = []
    for mutant in chosen:
        survived = survives(mutant, given.histories)
        sys.stderr.write(f"{'SURVIVED' if survived else 'killed  '} {mutant.name}\n")
        survivors += [mutant.name] * survived
    report = {"mutants": len(chosen), "killed": len(chosen) - len(survivors), "survivors": survivors}
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
