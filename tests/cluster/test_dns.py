"""What the cluster's DNS is told."""

from __future__ import annotations

from harness.dns import hosts_lines


def test_names_come_from_services_and_the_pods_behind_headless_ones() -> None:
    meta = {"namespace": "team", "name": "ring"}
    headless = {"metadata": meta, "spec": {"clusterIP": "None"}}
    plain = {"metadata": {"namespace": "team", "name": "web"}, "spec": {"clusterIP": "10.1.2.3"}}
    addresses = [{"ip": "10.0.0.5", "hostname": "stage-0"}, {"ip": "10.0.0.6"}]
    hidden = {"addresses": addresses, "notReadyAddresses": [{"ip": "10.0.0.7"}]}
    endpoints = [
        {"metadata": meta, "subsets": [hidden]},
        {"metadata": plain["metadata"], "subsets": [hidden]},
    ]
    assert hosts_lines([headless, plain], endpoints) == [
        "10.0.0.5 ring.team.svc.cluster.local",
        "10.0.0.5 stage-0.ring.team.svc.cluster.local",
        "10.0.0.6 ring.team.svc.cluster.local",
        "10.1.2.3 web.team.svc.cluster.local",
    ]
