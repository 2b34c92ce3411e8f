"""What the operator may do, as data: the least that works, and the restricted pod security profile."""

from __future__ import annotations

from typing import Any

import pytest
from rendered_chart import Helm, Rendered

EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "rbac.podGroups": ["volcano", "scheduler-plugins"],
}
SCOPES = [{}, {"watchNamespace": "team-a"}]


def rules(chart: Rendered) -> list[dict[str, Any]]:
    return [rule for kind in ("Role", "ClusterRole") for role in chart.all(kind) for rule in role["rules"]]


def operator_verbs(chart: Rendered, kind: str) -> dict[str, set[str]]:
    """What the operator's own role allows: verbs by group/resource."""
    role = chart.one(kind, "release-gnnpipe")
    return {
        f"{group}/{resource}": set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize("scope", SCOPES, ids=["cluster", "namespaced"])
def test_no_rule_has_a_star_or_speaks_of_secrets(helm: Helm, scope: dict[str, Any]) -> None:
    for rule in rules(helm.render({**EVERYTHING, **scope})):
        named = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in named
        assert not {"secrets", "pods/exec", "pods/log", "roles", "clusterroles"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@pytest.mark.parametrize("scope", SCOPES, ids=["cluster", "namespaced"])
def test_the_operator_may_do_just_this(helm: Helm, scope: dict[str, Any]) -> None:
    assert operator_verbs(helm.render(scope), "Role" if scope else "ClusterRole") == {
        "gnnpipe.io/gnnpipejobs": {"list", "watch", "delete"},
        "gnnpipe.io/gnnpipejobs/status": {"patch"},
        "/pods": {"get", "list", "watch", "create", "delete"},
        "/services": {"get", "create"},
        "/events": {"create"},
    }


def test_more_is_granted_only_where_asked_for(helm: Helm) -> None:
    plain = operator_verbs(helm.render(), "ClusterRole")
    more = operator_verbs(helm.render(EVERYTHING), "ClusterRole")
    assert {name: more[name] for name in more.keys() - plain.keys()} == {
        "scheduling.volcano.sh/podgroups": {"get", "create"},
        "scheduling.x-k8s.io/podgroups": {"get", "create"},
    }


def test_leases_are_granted_in_the_operators_own_namespace_only(helm: Helm) -> None:
    for scope in SCOPES:
        chart = helm.render(scope)
        holders = [
            role
            for kind in ("Role", "ClusterRole")
            for role in chart.all(kind)
            if any("leases" in rule["resources"] for rule in role["rules"])
        ]
        assert [(h["kind"], h["metadata"]["namespace"]) for h in holders] == [("Role", "operators")]


def test_each_binding_leads_from_the_deployments_account_to_a_role_that_exists(helm: Helm) -> None:
    for scope in SCOPES:
        chart = helm.render(scope)
        account = {
            "kind": "ServiceAccount",
            "name": chart.pod()["spec"]["serviceAccountName"],
            "namespace": "operators",
        }
        for binding in [*chart.all("RoleBinding"), *chart.all("ClusterRoleBinding")]:
            assert binding["subjects"] == [account]
            chart.one(binding["roleRef"]["kind"], binding["roleRef"]["name"])


def test_people_who_may_edit_a_namespace_may_run_jobs_there_but_not_write_their_status(helm: Helm) -> None:
    edit = helm.render().one("ClusterRole", "release-gnnpipe-edit")
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert [rule["resources"] for rule in edit["rules"]] == [["gnnpipejobs"]]


def test_the_operator_fits_the_restricted_profile_and_a_read_only_root(helm: Helm) -> None:
    chart = helm.render()
    pod, container = chart.pod()["spec"], chart.container()["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_the_account_hands_its_token_to_the_operator_only(helm: Helm) -> None:
    chart = helm.render()
    assert chart.one("ServiceAccount")["automountServiceAccountToken"] is False
    assert chart.pod()["spec"]["automountServiceAccountToken"] is True


def test_the_network_policy_opens_metrics_inwards_and_api_dns_and_progress_outwards(helm: Helm) -> None:
    spec = helm.render().one("NetworkPolicy")["spec"]
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == ["metrics"]
    assert {port["port"] for rule in spec["egress"] for port in rule["ports"]} == {443, 6443, 53, 9400}
    assert "NetworkPolicy" not in helm.render({"networkPolicy.enabled": False}).kinds()
