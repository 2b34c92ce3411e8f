"""etcd, API server, controller manager and scheduler on free ports, in one temporary folder."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import binaries
from .certificates import Authority
from .errors import StartFailed
from .kubectl import Kubectl
from .processes import Process, await_ready, free_ports, poll, start

SERVICE_RANGE = "10.96.0.0/16"
READY_SECONDS = 120.0  # seconds are enough, unless other builds and tests share the cores


@dataclass(frozen=True)
class Ports:
    """Free ports, chosen together so that they differ."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


class ControlPlane:
    """A control plane without nodes; pods stay Pending unless a test plays the kubelet.

    `with ControlPlane() as control_plane:` or `start()` and `stop()`. `stop` ends the processes by their
    ids and removes the folder.
    """

    def __init__(
        self,
        *,
        address: str = "127.0.0.1",
        service_range: str = SERVICE_RANGE,
        scheduler: bool = True,
        node_grace_seconds: int = 40,
        admission: Sequence[str] = (),
        outlive: bool = False,
        definitions: Sequence[Mapping[str, Any]] = (),
        audit_policy: Mapping[str, Any] | None = None,
    ) -> None:
        """`definitions` are there before the controllers start: the garbage collector looks for new kinds of
        objects every 30 seconds only. With `audit_policy` the API server keeps a list, at `audit_log`."""
        self.address = address
        self.service_range = service_range
        self.scheduler = scheduler
        self.node_grace_seconds = node_grace_seconds
        self.admission = admission  # admission plugins beyond the API server's usual ones
        self.outlive = outlive
        self.definitions = definitions
        self.audit_policy = audit_policy
        self.binaries = binaries.find(binaries.CONTROL_PLANE)
        self.processes: dict[str, Process] = {}

    def start(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="gnnpipe-cluster-"))
        try:
            self._prepare()
            self._start_etcd()
            self.start_apiserver()
            for definition in self.definitions:
                self.kubectl.apply(definition)
            self._start_controllers()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process and remove the folder; nothing is saved, so nothing is asked gently."""
        for name in reversed(list(self.processes)):
            self.processes.pop(name).stop(grace_seconds=0)
        if self.folder.exists():
            shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.ports.apiserver}"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask the API server itself, as administrator: a hundred times quicker than a call of kubectl."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with self._opener(verify=True).open(request, timeout=30) as answer:
            told: dict[str, Any] = json.load(answer)
            return told

    def stop_apiserver(self) -> None:
        """Take the API server away without a goodbye to its watchers; etcd keeps what it knew."""
        self.processes.pop("kube-apiserver").stop(grace_seconds=0)

    def start_apiserver(self) -> None:
        """Start the API server, at the same address as before, and wait until it serves."""
        flags: dict[str, object] = {
            "etcd-servers": f"http://127.0.0.1:{self.ports.etcd}",
            "bind-address": self.address,
            "advertise-address": self.address,
            "secure-port": self.ports.apiserver,
            "tls-cert-file": self.serving.certificate,
            "tls-private-key-file": self.serving.key,
            "client-ca-file": self.authority.root.certificate,
            "kubelet-client-certificate": self.admin.certificate,
            "kubelet-client-key": self.admin.key,
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-key-file": self.account_public_key,
            "service-account-signing-key-file": self.account_key,
            "service-cluster-ip-range": self.service_range,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": ",".join(["NodeRestriction", *self.admission]),
            "allow-privileged": "true",
        }
        if self.address.startswith("127."):
            flags["endpoint-reconciler-type"] = "none"  # an Endpoints object may not hold loopback addresses
        if self.audit_policy is not None:
            policy = self.folder / "audit-policy.json"
            policy.write_text(json.dumps(self.audit_policy))
            flags |= {"audit-policy-file": policy, "audit-log-path": self.audit_log}
        process = self._start("kube-apiserver", flags)
        await_ready(process, lambda: self._answers("/readyz"), READY_SECONDS)

    def restart_apiserver(self) -> None:
        self.stop_apiserver()
        self.start_apiserver()

    def _prepare(self) -> None:
        self.ports = Ports(*free_ports(5))
        self.authority = Authority(self.folder / "certificates")
        self.account_key, self.account_public_key = self.authority.signing_keys("service-accounts")
        names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        addresses = [
            *names,
            "kubernetes.default.svc.cluster.local",
            "127.0.0.1",
            str(next(ip_network(self.service_range).hosts())),  # where pods find the API server
            self.address,
        ]
        self.serving = self.authority.issue("apiserver", "kube-apiserver", addresses=addresses)
        self.admin = self.authority.issue("admin", "gnnpipe-admin", groups=["system:masters"])
        self.kubeconfig = self.authority.kubeconfig(self.folder / "kubeconfig", self.url, self.admin)
        self.kubectl = Kubectl(self.binaries["kubectl"], self.kubeconfig)
        self._openers: dict[bool, urllib.request.OpenerDirector] = {}

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.etcd, self.ports.etcd_peer))
        flags: dict[str, object] = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "quota-backend-bytes": 2**32,
        }
        process = self._start("etcd", flags)
        await_ready(process, lambda: self._answers("/health", base=client), READY_SECONDS)

    def _start_controllers(self) -> None:
        controllers: dict[str, object] = {
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self.account_key,
            "root-ca-file": self.authority.root.certificate,
            "node-monitor-grace-period": f"{self.node_grace_seconds}s",
            "node-monitor-period": f"{max(1, min(5, self.node_grace_seconds // 4))}s",
        }
        ports = {"kube-controller-manager": self.ports.controller_manager}
        if self.scheduler:
            ports["kube-scheduler"] = self.ports.scheduler
        for name, port in ports.items():
            self._start_controller(name, port, controllers if name == "kube-controller-manager" else {})
        for name, port in ports.items():
            self._await_controller(name, port)
        if not poll(
            lambda: self._answers("/api/v1/namespaces/default/serviceaccounts/default"), READY_SECONDS
        ):
            log = self.processes["kube-controller-manager"].log_tail()
            raise StartFailed(f"the controller manager made no service account; the end of its log:\n{log}")

    def _start_controller(self, name: str, port: int, flags: dict[str, object]) -> None:
        common: dict[str, object] = {
            "kubeconfig": self.kubeconfig,
            "authentication-kubeconfig": self.kubeconfig,
            "authorization-kubeconfig": self.kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "leader-elect": "false",
            "kube-api-qps": 500,
            "kube-api-burst": 1000,
        }
        if self._minor_version(name) < 24:
            common["port"] = 0  # the plain HTTP port, fixed by default: two clusters would collide on it
        self._start(name, common | flags)

    def _await_controller(self, name: str, port: int) -> None:
        url = f"https://127.0.0.1:{port}"
        await_ready(self.processes[name], lambda: self._answers("/healthz", base=url), READY_SECONDS)

    def _start(self, name: str, flags: dict[str, object]) -> Process:
        command = [str(self.binaries[name]), *(f"--{flag}={value}" for flag, value in flags.items())]
        self.processes[name] = start(name, command, self.folder, outlive=self.outlive)
        return self.processes[name]

    def _minor_version(self, name: str) -> int:
        printed = subprocess.run(
            [self.binaries[name], "--version"], capture_output=True, text=True, check=True
        )
        found = re.search(r"v1\.(\d+)\.", printed.stdout)
        assert found, f"{name} --version says {printed.stdout!r}"
        return int(found[1])

    def _answers(self, path: str, base: str | None = None) -> bool:
        """Whether a GET, as administrator, is answered with 200."""
        opener = self._opener(verify=base is None)  # controllers make their own serving certificates
        try:
            with opener.open((base or self.url) + path, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _opener(self, verify: bool) -> urllib.request.OpenerDirector:
        """Made once: tests ask several times a second, and reading the certificates is most of the work."""
        if verify not in self._openers:
            self._openers[verify] = self._make_opener(verify)
        return self._openers[verify]

    def _make_opener(self, verify: bool) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=str(self.authority.root.certificate))
        if not verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.admin.certificate, self.admin.key)
        return urllib.request.build_opener(
            urllib.request.ProxyHandler({}),  # never through a proxy: the server is on this machine
            urllib.request.HTTPSHandler(context=context),
        )
