"""A real cluster with GNNPipe installed, and namespaces on it. Everything ends with the fixtures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from harness.cluster import Cluster
from harness.errors import NoCluster
from harness.fixtures import make_namespace, remove_namespace, skip_or_fail
from harness.processes import poll

sys.path.append(str(Path(__file__).parent))  # the modules beside this file

import project_images
import restricted
from disturbed import Steady, run_in_peace
from installation import Installation
from jobs import CLAIM, GONE_SECONDS, GRAPHS, Jobs
from traces import Trace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that takes as long as ten others goes first, so that no worker is left alone with it in the end.

    After it goes the shortest: a worker has always been promised its next test, and nobody takes that one over.
    """
    order = ["random_faults", "operators_image_is_small"]
    items.sort(key=lambda item: next((at for at, name in enumerate(order) if name in item.name), len(order)))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes with eight GPUs each, lost after 8 seconds of silence, that take restricted pods only.

    Afterwards no trace of them is left.
    """
    try:
        running = Cluster(
            nodes=2,
            gpus_per_node=8,
            node_grace_seconds=8,
            admission=[restricted.ADMISSION],
            images=project_images.build(),
        ).start()
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    restricted.enforce(running.kubectl)
    yield running
    trace = Trace.of(running)
    running.stop()
    assert poll(lambda: trace.left() == [], 10), f"the cluster left behind: {trace.left()}"


@pytest.fixture(scope="session")
def installation(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    made = Installation(cluster, tmp_path_factory.mktemp("helm"))
    made.install()
    yield made
    made.uninstall()


@pytest.fixture(scope="session")
def namespaces(installation: Installation) -> Iterator[list[str]]:
    """Where tests had their jobs. That nothing of them stays is looked at in the end, for all of them at once."""
    used: list[str] = []
    yield used
    for namespace in used:
        remove_namespace(installation.cluster.control_plane, namespace, GONE_SECONDS)
    volumes = partial(installation.cluster.kubectl, "get", "pv", "-o", "name")
    assert poll(lambda: not volumes(), 30), volumes()


@pytest.fixture
def jobs(installation: Installation, namespaces: list[str], tmp_path: Path) -> Iterator[Jobs]:
    """A namespace with a claim for results; afterwards its jobs are deleted, and the operator's log is clean."""
    namespace = make_namespace(installation.cluster.control_plane)
    namespaces.append(namespace)
    kubectl = installation.cluster.kubectl.inside(namespace)
    folders = {claim: tmp_path / "volumes" / claim for claim in (CLAIM, GRAPHS)}
    made = Jobs(kubectl, installation.cluster.control_plane, folders)
    for folder in made.volumes.values():
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    parts = [volume_and_claim(namespace, claim, folder) for claim, folder in made.volumes.items()]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": list(chain.from_iterable(parts))})
    # A pod that comes before its volume would be told of as unschedulable.
    kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc", "--all", "--timeout=30s")
    began = datetime.now(UTC)
    yield made
    made.delete_all()
    kubectl("delete", "pvc", "--all", "--wait=false")
    kubectl("delete", "pv", *(f"{namespace}-{claim}" for claim in made.volumes), "--wait=false")
    log = installation.operator_log(began).splitlines()
    bad = [line for line in log if is_bad(line) and not any(re.search(each, line) for each in made.forgiven)]
    assert not bad, "unexpected errors in the operator's log:\n" + "\n".join(bad)


def is_bad(line: str) -> bool:
    return re.search(r" (ERROR|CRITICAL) |Traceback|Exception", line) is not None


def volume_and_claim(namespace: str, claim: str, folder: Path) -> list[dict[str, Any]]:
    """A folder of this machine. Both nodes see it, so it is what a cluster calls ReadWriteMany."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    wanted = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": f"{namespace}-{claim}",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    return [volume, wanted]


@pytest.fixture
def example() -> Callable[..., dict[str, Any]]:
    """A manifest of examples/, which keeps what it makes on the claim, so that it can be compared."""

    def read(name: str, **training: Any) -> dict[str, Any]:
        path = project_images.PROJECT / "examples" / f"{name}.yaml"
        manifest: dict[str, Any] = yaml.safe_load(path.read_text())
        manifest["spec"]["training"].update(training)
        volume = {"persistentVolumeClaim": {"claimName": CLAIM}}
        manifest["spec"]["checkpoint"] = {**manifest["spec"].get("checkpoint", {}), "volume": volume}
        return manifest

    return read


@pytest.fixture(scope="session")
def steady(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Steady:
    """Trained once for all workers of this test run: whoever comes first does it."""
    own = tmp_path_factory.getbasetemp()
    everybodys = own if worker_id == "master" else own.parent
    with FileLock(everybodys / "steady.lock"):
        return run_in_peace(everybodys / "steady")
