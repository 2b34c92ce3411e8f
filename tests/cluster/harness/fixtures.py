"""pytest fixtures for tests against a real API server; a plugin, so that every room of tests has them.

A test that asks for `control_plane` (or `kubectl`, `namespace`) gets the marker `cluster`. Each xdist worker
has a control plane of its own: an operator that watches all namespaces then sees the tests of one worker only.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from . import binaries
from .cluster import Cluster
from .controlplane import ControlPlane
from .errors import NoCluster
from .kubectl import Kubectl
from .processes import poll
from .runtime import find_runtime

# What Kubernetes itself puts into every namespace.
MADE_BY_KUBERNETES = frozenset({"configmap/kube-root-ca.crt", "serviceaccount/default"})
WATCHED_KINDS = (
    "pods",
    "services",
    "configmaps",
    "secrets",
    "serviceaccounts",
    "jobs",
    "persistentvolumeclaims",
    "roles",
    "rolebindings",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nodes: needs nodes that run real containers, and so root")


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture, marker in (("control_plane", "cluster"), ("cluster", "nodes")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(marker)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Find or build the binaries now, when no test's time limit runs yet."""
    if session.config.option.collectonly:
        return
    wanted = {mark.name for item in session.items for mark in item.iter_markers()} & {"cluster", "nodes"}
    with suppress(NoCluster):  # each test that needs it says so itself
        if wanted:
            binaries.find(binaries.CONTROL_PLANE)
        if "nodes" in wanted:
            find_runtime()
            binaries.find(binaries.NODE)


def skip_or_fail(reason: str) -> None:
    """No cluster: a skip that says what to do, or a failure where the person wants none skipped."""
    if os.environ.get("GNNPIPE_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"GNNPIPE_REQUIRE_CLUSTER=1 and no cluster: {reason}", pytrace=False)
    pytest.skip(f"no cluster: {reason}")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """One control plane for the whole run of this worker; tests keep apart by namespaces."""
    try:
        running = ControlPlane().start()
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two nodes with eight GPUs each (so the scheduler believes), lost after 8 seconds of silence."""
    try:
        running = Cluster(nodes=2, gpus_per_node=8, node_grace_seconds=8).start()
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    return control_plane.kubectl


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A fresh namespace on the control plane, empty before the test and empty after it."""
    with fresh_namespace(kubectl) as name:
        yield name


@pytest.fixture
def node_namespace(cluster: Cluster) -> Iterator[str]:
    """The same on the cluster with nodes."""
    with fresh_namespace(cluster.kubectl) as name:
        yield name


@contextmanager
def fresh_namespace(kubectl: Kubectl) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    inside = kubectl.inside(name)
    kubectl("create", "namespace", name)
    # Pods are refused until the controller manager has made the default service account and its token.
    ready = poll(lambda: leftovers(inside, ignore=frozenset()) >= MADE_BY_KUBERNETES, 30, every=0.2)
    assert ready, f"namespace {name} did not get {sorted(MADE_BY_KUBERNETES)} within 30 s"
    assert leftovers(inside) == set()
    yield name
    emptied = poll(lambda: not leftovers(inside), 10, every=0.3)
    remaining = set() if emptied else leftovers(inside)
    kubectl("delete", "namespace", name, "--wait=false")
    assert remaining == set(), "the test left something behind; delete it, or await that it goes away"


def leftovers(kubectl: Kubectl, ignore: frozenset[str] = MADE_BY_KUBERNETES) -> set[str]:
    """What a namespace holds, as kind/name, besides what Kubernetes puts there itself."""
    custom = kubectl("get", "crd", "-o", "jsonpath={.items[?(@.spec.scope=='Namespaced')].metadata.name}")
    names = kubectl("get", ",".join([*WATCHED_KINDS, *custom.split()]), "-o", "name").split()
    return {name for name in names if not name.startswith("secret/default-token-")} - ignore
