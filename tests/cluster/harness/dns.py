"""Cluster DNS: dnsmasq answers from a hosts file that this process writes from Services and Endpoints.

Run as `python -m harness.dns KUBECONFIG HOSTS_FILE DNSMASQ_PID`. Debian has no CoreDNS; headless Services with
names of pods are all that jobs need, and plain Services come for free.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import kubernetes
import urllib3

from .node_settings import CLUSTER_DOMAIN

EVERY_SECONDS = 0.5
Object = Mapping[str, Any]  # a Kubernetes object as JSON


def hosts_lines(services: Iterable[Object], endpoints: Iterable[Object]) -> list[str]:
    """Lines of a hosts file: Services by their cluster address, headless ones by those of their pods."""
    found: set[str] = set()
    headless: set[tuple[str, str]] = set()
    for service in services:
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        address = service["spec"].get("clusterIP")
        if address == "None":
            headless.add(key)
        elif address:
            found.add(f"{address} {_name(key)}")
    for each in endpoints:
        key = (each["metadata"]["namespace"], each["metadata"]["name"])
        if key in headless:
            found |= {line for subset in each.get("subsets") or [] for line in _subset_lines(key, subset)}
    return sorted(found)


def _subset_lines(key: tuple[str, str], subset: Object) -> Iterable[str]:
    # Endpoints list the addresses of unready pods as ready where the Service publishes them.
    for address in subset.get("addresses") or []:
        yield f"{address['ip']} {_name(key)}"
        if address.get("hostname"):
            yield f"{address['ip']} {address['hostname']}.{_name(key)}"


def _name(key: tuple[str, str]) -> str:
    namespace, service = key
    return f"{service}.{namespace}.svc.{CLUSTER_DOMAIN}"


def dnsmasq_command(address: str, hosts: Path) -> list[str]:
    """dnsmasq that knows the hosts file and nothing else: every other name does not exist."""
    return [
        "dnsmasq",
        # Stays root: the hosts file is in root's folder, and a change of user would undo the guard that
        # kills it with its parent.
        "--no-daemon",
        "--conf-file=/dev/null",
        "--log-facility=-",
        "--bind-interfaces",
        "--except-interface=lo",
        f"--listen-address={address}",
        "--no-resolv",
        "--no-hosts",
        f"--addn-hosts={hosts}",
        "--address=/#/",
        "--no-negcache",
        "--local-ttl=1",
    ]


def main() -> None:
    kubeconfig, hosts, pid = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    kubernetes.config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    core: Any = kubernetes.client.CoreV1Api()
    options: dict[str, Any] = {"resource_version": "0", "_request_timeout": 5, "_preload_content": False}
    while True:
        began = time.monotonic()
        try:
            services = json.loads(core.list_service_for_all_namespaces(**options).data)["items"]
            endpoints = json.loads(core.list_endpoints_for_all_namespaces(**options).data)["items"]
            write_if_changed(hosts, hosts_lines(services, endpoints), pid)
        except (kubernetes.client.ApiException, urllib3.exceptions.HTTPError) as error:
            logging.warning("the API server does not answer, the old names stay: %s", error)
        time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - began)))


def write_if_changed(hosts: Path, lines: list[str], dnsmasq_pid: int) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if hosts.exists() and hosts.read_text() == text:
        return
    hosts.write_text(text)
    os.kill(dnsmasq_pid, signal.SIGHUP)
    logging.info("%d names", len(lines))


if __name__ == "__main__":
    main()
