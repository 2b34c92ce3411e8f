"""The operator at a real API server: time from apply to pods, and many jobs at once.

    python benchmarks/operator_scale.py --jobs 100 1000

Starts a control plane of its own (tests/cluster), plays the kubelet, and prints one JSON object. Writes are
counted from the API server's audit log, memory by the kernel. Exits with 1 where a bar of the project is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cluster"))

from harness.controlplane import ControlPlane
from harness.processes import free_ports, start

from gnnpipe_api.contract import GROUP, KIND, PLURAL, VERSION
from gnnpipe_api.crd import crd
from gnnpipe_operator.api_client import ApiClient, ApiError, Unreachable, login

BARS = {"applyToPodsSeconds": 1.0, "memoryBytes": 300e6, "mostWritesOfAJob": 12, "growth": 1.5}
MERGE = "application/strategic-merge-patch+json"
PLAYERS = 12  # requests of the played kubelet at a time
JOBS_PATH = f"/apis/{GROUP}/{VERSION}/namespaces/{{}}/{PLURAL}"
PODS_PATH = "/api/v1/namespaces/{}/pods"
# Of all that only the operator writes; the played kubelet writes pods/status.
WRITES = {
    ("create", "pods", ""),
    ("delete", "pods", ""),
    ("create", "services", ""),
    ("create", "events", ""),
    ("patch", PLURAL, "status"),
    ("delete", PLURAL, ""),
}
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "verbs": ["create", "delete", "patch"],
            "resources": [
                {"group": "", "resources": ["pods", "services", "events"]},
                {"group": GROUP, "resources": [PLURAL, f"{PLURAL}/status"]},
            ],
        },
        {"level": "None"},
    ],
}


def job(name: str, stages: int) -> dict[str, Any]:
    spec = {
        "graph": {"source": "synthetic"},
        "model": {"kind": "gcnii", "layers": 32},
        "parallelism": {"stages": stages},
    }
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, "spec": spec}


class PatientClient(ApiClient):
    """The played kubelet's. An API server that is slow to answer it is no finding about the operator."""

    async def request(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        for _ in range(20):
            try:
                return await super().request(method, path, **options)
            except Unreachable:
                continue
            except ApiError as error:
                if method == "POST" and error.status == 409:  # done by the request that got no answer
                    return {}
                raise
        raise Unreachable(f"{method} {path}: no answer in 20 tries")


class Bench:
    def __init__(self, client: ApiClient, control_plane: ControlPlane, folder: Path) -> None:
        self.client = client
        self.control_plane = control_plane
        self.folder = folder

    @asynccontextmanager
    async def namespace(self, name: str) -> AsyncIterator[str]:
        await self.client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        await until("the namespace has its account", lambda: self._exists(accounts), 60)
        yield name
        await self.client.delete(f"/api/v1/namespaces/{name}", {})

    @asynccontextmanager
    async def operator(self, name: str, namespace: str) -> AsyncIterator[tuple[psutil.Process, int]]:
        """The process and the port of its metrics."""
        metrics, probe = free_ports(2)
        ports = [f"--metrics-port={metrics}", f"--probe-port={probe}"]
        command = [sys.executable, "-m", "gnnpipe_operator.main", f"--namespace={namespace}", *ports]
        environment = {**os.environ, "GNNPIPE_LOG_LEVEL": "warning"}
        process = start(name, command, self.folder, environment=environment)
        try:
            canary = JOBS_PATH.format(namespace)
            await self.client.post(canary, job("canary", stages=1))
            pod = f"{PODS_PATH.format(namespace)}/canary-s0-a0"
            await until("the operator is at work", lambda: self._exists(pod), 120)
            await self.client.delete(f"{canary}/canary", {})
            await until("the canary is gone", lambda: self._gone(pod), 60)
            yield psutil.Process(process.pid), metrics
        finally:
            process.stop()
            sys.stderr.write(process.log.read_text()[-2000:])

    async def _exists(self, path: str) -> bool:
        try:
            await self.client.get(path)
        except ApiError:
            return False
        return True

    async def _gone(self, path: str) -> bool:
        return not await self._exists(path)

    async def pods(self, namespace: str, **selectors: str) -> list[str]:
        found = await self.client.get(PODS_PATH.format(namespace), params=selectors)
        return [item["metadata"]["name"] for item in found.get("items") or []]

    def writes(self, namespace: str) -> dict[str, Counter[str]]:
        """Successful writes of the operator in a namespace: by job, then by kind."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        with self.control_plane.audit_log.open() as lines:
            for entry in map(json.loads, lines):
                what = entry["objectRef"]
                kind = entry["verb"], what["resource"], what.get("subresource", "")
                is_operators = entry["userAgent"] == "gnnpipe-operator" and kind in WRITES
                if (
                    what.get("namespace") == namespace
                    and is_operators
                    and entry["responseStatus"]["code"] < 300
                ):
                    found[job_of(what["name"])][" ".join(filter(None, kind))] += 1
        found.pop("canary", None)
        return found

    async def play(self, namespace: str, pods: Iterable[str], status: dict[str, Any]) -> None:
        limit = asyncio.Semaphore(PLAYERS)

        async def one(pod: str) -> None:
            async with limit:
                path = f"{PODS_PATH.format(namespace)}/{pod}/status"
                await self.client.request("PATCH", path, body={"status": status}, content_type=MERGE)

        await asyncio.gather(*(one(pod) for pod in pods))


def job_of(name: str) -> str:
    """The job that an object of this name belongs to: a pod, a Service, an Event or the job itself."""
    return re.sub(r"(-s\d+-a\d+|\.[0-9a-f]{16})$", "", name)


def samples(text: str, metric: str) -> list[tuple[str, float]]:
    found = re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    return [(labels, float(value)) for labels, value in found]


async def until(
    what: str, condition: Callable[[], Awaitable[bool]], within: float, every: float = 0.1
) -> None:
    deadline = time.monotonic() + within
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:.0f} s: {what}")
        await asyncio.sleep(every)


async def apply_to_pods(bench: Bench, rounds: int = 20, stages: int = 8) -> float:
    """Median seconds from the answer to `apply` until all pods of an 8-stage job exist."""
    seconds = []
    async with bench.namespace("latency") as namespace, bench.operator("latency", namespace):
        for number in range(rounds):
            name = f"job-{number}"
            await bench.client.post(JOBS_PATH.format(namespace), job(name, stages))
            began = time.perf_counter()

            async def all_there(name: str = name) -> bool:
                return len(await bench.pods(namespace, labelSelector=f"{GROUP}/job={name}")) == stages

            await until(f"{name} has its pods", all_there, 30, every=0.01)
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


async def many_jobs(bench: Bench, count: int, stages: int = 4) -> dict[str, Any]:
    namespace = f"scale-{count}"
    async with bench.namespace(namespace), bench.operator(namespace, namespace) as (process, port):
        cpu = sum(process.cpu_times()[:2])
        began = time.monotonic()
        limit = asyncio.Semaphore(PLAYERS)

        async def apply(number: int) -> None:
            async with limit:
                await bench.client.post(JOBS_PATH.format(namespace), job(f"job-{number}", stages))

        await asyncio.gather(*(apply(number) for number in range(count)))
        played: set[str] = set()

        async def in_phase(phase: str) -> bool:
            return await jobs_in_phase(port, phase) == count

        async def all_run() -> bool:
            waiting = await bench.pods(namespace, fieldSelector="status.phase=Pending", limit="500")
            played.update(waiting)
            await bench.play(namespace, waiting, {"phase": "Running"})
            return len(played) == count * stages and await in_phase("Running")

        await until("all run", all_run, 60 + count * 1.5, every=0.3)
        running = time.monotonic()
        await bench.play(namespace, sorted(played), {"phase": "Succeeded"})
        await until("all succeeded", lambda: in_phase("Succeeded"), 60 + count * 1.5, every=0.5)
        ended = time.monotonic()
        writes = bench.writes(namespace)
        busiest = max(writes.values(), key=Counter.total)
        return {
            "jobs": count,
            "secondsPerJob": (ended - began) / count,
            "secondsUntilAllRun": running - began,
            "operatorCpuSecondsPerJob": (sum(process.cpu_times()[:2]) - cpu) / count,
            "writesPerJob": sum(map(Counter.total, writes.values())) / count,
            "mostWritesOfAJob": busiest.total(),
            "theyWere": dict(busiest),
            "memoryBytes": peak_bytes(process.pid),
            "reconcileErrors": await reconcile_errors(port),
        }


async def jobs_in_phase(port: int, phase: str) -> int:
    text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
    found = samples(text, "gnnpipe_job_phase")
    return int(sum(value for labels, value in found if f'phase="{phase}"' in labels))


async def reconcile_errors(port: int) -> float:
    text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
    match = re.search(r"^gnnpipe_reconcile_errors_total (\S+)$", text, re.MULTILINE)
    return float(match.group(1)) if match else float("nan")


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def peak_bytes(pid: int) -> float:
    """The most memory that the process ever held (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else float("nan")


async def run(counts: list[int], rounds: int) -> dict[str, Any]:
    control_plane = ControlPlane(scheduler=False, definitions=[crd()], audit_policy=AUDIT_POLICY)
    with control_plane, tempfile.TemporaryDirectory() as folder:
        os.environ["KUBECONFIG"] = str(control_plane.kubeconfig)
        async with PatientClient(login) as client:
            bench = Bench(client, control_plane, Path(folder))
            report: dict[str, Any] = {"load": os.getloadavg(), "cores": os.cpu_count()}
            if rounds:
                report["applyToPodsSeconds"] = await apply_to_pods(bench, rounds)
            report["scale"] = []
            for count in counts:
                try:
                    report["scale"].append(await many_jobs(bench, count))
                except (TimeoutError, Unreachable) as error:
                    report["scale"].append({"jobs": count, "failed": str(error)})
            return report


def missed_bars(report: dict[str, Any]) -> list[str]:
    missed = []
    if report.get("applyToPodsSeconds", 0) >= BARS["applyToPodsSeconds"]:
        missed.append("applyToPodsSeconds")
    done = [scale for scale in report["scale"] if "failed" not in scale]
    missed += [f"{scale['jobs']} jobs: {scale['failed']}" for scale in report["scale"] if "failed" in scale]
    for scale in done:
        for bar in ("memoryBytes", "mostWritesOfAJob"):
            if scale[bar] > BARS[bar]:
                missed.append(f"{scale['jobs']} jobs: {bar}")
        if scale["reconcileErrors"] > 0:
            missed.append(f"{scale['jobs']} jobs: reconcileErrors")
    if len(done) > 1 and done[-1]["secondsPerJob"] > BARS["growth"] * done[0]["secondsPerJob"]:
        missed.append("secondsPerJob grows with the number of jobs")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, nargs="*", default=[100, 1000])
    parser.add_argument(
        "--rounds", type=int, default=20, help="jobs for the time from apply to pods; 0: none"
    )
    given = parser.parse_args()
    report = asyncio.run(run(given.jobs, given.rounds))
    report["missed"] = missed_bars(report)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    sys.exit(1 if report["missed"] else 0)


if __name__ == "__main__":
    main()
