"""pytest fixtures for tests against a real API server; a plugin, so that every room of tests has them.

A test that asks for `control_plane` (or `kubectl`, `namespace`) gets the marker `cluster`. Each xdist worker
has a control plane of its own: an operator that watches all namespaces then sees the tests of one worker only.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from gnnpipe_api.crd import crd

from . import binaries
from .cluster import Cluster
from .controlplane import ControlPlane
from .errors import NoCluster
from .forkserver import ForkServer
from .kubectl import Kubectl
from .processes import poll
from .runtime import find_runtime

# What Kubernetes itself puts into every namespace.
MADE_BY_KUBERNETES = frozenset({"configmaps/kube-root-ca.crt", "serviceaccounts/default"})
WATCHED_KINDS = {
    "/api/v1": ("pods", "services", "configmaps", "secrets", "serviceaccounts", "persistentvolumeclaims"),
    "/apis/batch/v1": ("jobs",),
    "/apis/rbac.authorization.k8s.io/v1": ("roles", "rolebindings"),
}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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
        running = ControlPlane(definitions=[crd()]).start()
    except NoCluster as error:
        skip_or_fail(str(error))
        raise
    yield running
    running.stop()


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="session")
def operator_program() -> Iterator[ForkServer]:
    """`gnnpipe-operator`, to be started as often as tests like."""
    program = ForkServer("gnnpipe_operator.main")
    yield program
    program.stop()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A fresh namespace on the control plane, empty before the test and empty after it."""
    with fresh_namespace(control_plane) as name:
        yield name


@pytest.fixture
def node_namespace(cluster: Cluster) -> Iterator[str]:
    """The same on the cluster with nodes."""
    with fresh_namespace(cluster.control_plane) as name:
        yield name


@contextmanager
def fresh_namespace(control_plane: ControlPlane) -> Iterator[str]:
    name = make_namespace(control_plane)
    yield name
    remove_namespace(control_plane, name, within_seconds=10)


def make_namespace(control_plane: ControlPlane) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the controller manager has made the default service account and its token.
    made = poll(lambda: leftovers(control_plane, name, frozenset()) >= MADE_BY_KUBERNETES, 30)
    assert made, f"namespace {name} did not get {sorted(MADE_BY_KUBERNETES)} within 30 s"
    assert leftovers(control_plane, name) == set()
    return name


def remove_namespace(control_plane: ControlPlane, name: str, within_seconds: float) -> None:
    """Fails where something is left in it for longer than that."""
    poll(lambda: not leftovers(control_plane, name), within_seconds)
    remaining = leftovers(control_plane, name)
    control_plane.request("DELETE", f"/api/v1/namespaces/{name}")
    assert remaining == set(), "the test left something behind; delete it, or await that it goes away"


def leftovers(
    control_plane: ControlPlane, namespace: str, ignore: frozenset[str] = MADE_BY_KUBERNETES
) -> set[str]:
    """What a namespace holds, as kind/name, besides what Kubernetes puts there itself."""
    found = set()
    for base, kinds in [*WATCHED_KINDS.items(), *custom_kinds(control_plane)]:
        for kind in kinds:
            listed = control_plane.request("GET", f"{base}/namespaces/{namespace}/{kind}")
            found |= {f"{kind}/{item['metadata']['name']}" for item in listed["items"] or []}
    return {name for name in found if not name.startswith("secrets/default-token-")} - ignore


def custom_kinds(control_plane: ControlPlane) -> Iterator[tuple[str, tuple[str]]]:
    for definition in control_plane.request("GET", DEFINITIONS)["items"]:
        spec = definition["spec"]
        served = [version["name"] for version in spec["versions"] if version["served"]]
        if spec["scope"] == "Namespaced" and is_established(definition):
            yield f"/apis/{spec['group']}/{served[0]}", (spec["names"]["plural"],)


def is_established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)
