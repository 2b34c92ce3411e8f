"""What the chart makes, over the values and the clusters that people have."""

from __future__ import annotations

import pytest
from rendered_chart import CHART, MONITORING, NEW, OLD, Helm

NAMESPACED = {"watchNamespace": "team-a"}
CLUSTER_SCOPED = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
MONITORS = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_the_chart_passes_lint(helm: Helm) -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("kube", "apis", "watched", "replicas"),
    [  # every pair of choices at least once
        (OLD, (), "", 1),
        (OLD, (MONITORING,), "team-a", 2),
        (NEW, (), "team-a", 1),
        (NEW, (MONITORING,), "", 2),
        (NEW, (), "", 2),
        (OLD, (MONITORING,), "team-a", 1),
    ],
)
def test_every_object_has_a_place_and_a_name_of_its_own(
    helm: Helm, kube: str, apis: tuple[str, ...], watched: str, replicas: int
) -> None:
    objects = helm.render({"watchNamespace": watched, "replicas": replicas}, kube, apis).objects
    for found in objects:
        assert ("namespace" in found["metadata"]) == (found["kind"] not in CLUSTER_SCOPED), found["metadata"]
    identities = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(identities) == len(set(identities))


def test_old_clusters_get_the_definition_without_cel_and_new_ones_with_it(helm: Helm) -> None:
    for kube, cel in {OLD: False, "1.24.9": False, "1.25.0": True, NEW: True, "v1.29.3-eks-1": True}.items():
        definition = helm.render(kube=kube).one("CustomResourceDefinition")
        assert ("x-kubernetes-validations" in str(definition)) == cel, kube


def test_the_definition_is_kept_on_uninstall_and_can_be_left_out(helm: Helm) -> None:
    annotations = helm.render().one("CustomResourceDefinition")["metadata"]["annotations"]
    assert annotations["helm.sh/resource-policy"] == "keep"
    assert "CustomResourceDefinition" not in helm.render({"crd.install": False}).kinds()


def test_a_disruption_budget_comes_with_the_second_replica_in_the_version_the_cluster_knows(
    helm: Helm,
) -> None:
    assert "PodDisruptionBudget" not in helm.render().kinds()
    assert helm.render({"replicas": 2}, OLD).one("PodDisruptionBudget")["apiVersion"] == "policy/v1beta1"
    assert helm.render({"replicas": 2}, NEW).one("PodDisruptionBudget")["apiVersion"] == "policy/v1"
    assert (
        "PodDisruptionBudget"
        not in helm.render({"replicas": 2, "podDisruptionBudget.enabled": False}).kinds()
    )


def test_monitors_are_made_only_where_the_cluster_knows_them(helm: Helm) -> None:
    assert helm.render(apis=()).kinds().isdisjoint(MONITORS)
    assert helm.render().kinds() >= MONITORS


@pytest.mark.parametrize("kind", sorted(MONITORS))
def test_each_monitor_can_be_switched_off(helm: Helm, kind: str) -> None:
    switch = f"monitoring.{kind[0].lower()}{kind[1:]}.enabled"
    assert helm.render({switch: False}).kinds() & MONITORS == MONITORS - {kind}


def test_our_job_label_survives_the_scrape(helm: Helm) -> None:
    chart = helm.render()
    assert chart.one("ServiceMonitor")["spec"]["endpoints"][0]["honorLabels"] is True
    assert chart.one("PodMonitor")["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True


def test_namespaced_mode_makes_nothing_cluster_wide_but_the_definition(helm: Helm) -> None:
    chart = helm.render(NAMESPACED)
    assert chart.kinds() & CLUSTER_SCOPED == {"CustomResourceDefinition"}
    assert helm.render({**NAMESPACED, "crd.install": False}).kinds().isdisjoint(CLUSTER_SCOPED)


def test_namespaced_mode_watches_grants_and_scrapes_that_namespace(helm: Helm) -> None:
    chart = helm.render(NAMESPACED)
    assert "--namespace=team-a" in chart.container()["args"]
    for kind in ("Role", "RoleBinding"):
        assert chart.one(kind, "release-gnnpipe")["metadata"]["namespace"] == "team-a"
    assert chart.one("PodMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["team-a"]}
    assert not any("--namespace" in argument for argument in helm.render().container()["args"])


def test_the_selector_finds_the_pods_and_survives_an_upgrade(helm: Helm) -> None:
    chart = helm.render({"podLabels": {"team": "a"}})
    selector = chart.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= chart.pod()["metadata"]["labels"].items()
    # Selectors cannot be changed afterwards: a version in them would make the next upgrade fail.
    assert set(selector) == {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}
    assert chart.one("Service")["spec"]["selector"] == selector
    assert chart.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == selector


def test_the_monitor_selects_the_service(helm: Helm) -> None:
    chart = helm.render()
    wanted = chart.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= chart.one("Service")["metadata"]["labels"].items()


def test_images_come_by_tag_by_digest_or_by_the_version_of_the_chart(helm: Helm) -> None:
    digest = "sha256:" + "a" * 64
    assert helm.render().container()["image"] == "gnnpipe-operator:0.1.0"
    assert helm.render({"image.tag": "7"}).container()["image"] == "gnnpipe-operator:7"
    assert helm.render({"image.digest": digest}).container()["image"] == f"gnnpipe-operator@{digest}"
    environment = helm.render({"trainerImage.repository": "mirror/t"}).container()["env"]
    assert {"name": "GNNPIPE_TRAINER_IMAGE", "value": "mirror/t:0.1.0"} in environment


def test_a_long_release_name_still_gives_valid_names(helm: Helm) -> None:
    for found in helm.render({"nameOverride": "n" * 60, "replicas": 2}).objects:
        if found["kind"] != "CustomResourceDefinition":
            assert len(found["metadata"]["name"]) <= 63
