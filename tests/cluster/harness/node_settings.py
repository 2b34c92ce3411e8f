"""The files that make a node: settings of containerd, CNI and kubelet, and the script that boots them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .archive import PAUSE_IMAGE
from .certificates import Pair
from .network import BRIDGE, Network
from .runtime import Runtime

CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class NodeSettings:
    """Everything a node's settings depend on; `write` puts them into its folder."""

    name: str
    folder: Path
    address: str
    network: Network
    runtime: Runtime
    kubelet: Path
    serving: Pair
    client_ca: Path
    grace_seconds: int

    def write(self) -> None:
        for part in ("cni", "var-log", "var-lib", "kubelet", "opt", "volume-plugins"):
            (self.folder / part).mkdir()
        (self.folder / "resolv.conf").write_text("")  # pods see the cluster's DNS and no other
        (self.folder / "containerd.toml").write_text(self.containerd())
        (self.folder / "cni/10-pods.conflist").write_text(json.dumps(self.cni()))
        (self.folder / "kubelet.json").write_text(json.dumps(self.kubelet_configuration()))
        (self.folder / "boot.sh").write_text(self.boot_script())

    def boot_script(self) -> str:
        """Runs as the first process of the node. bash, because it also reaps orphans.

        kubelet and containerd know places that no option moves (/var/log/pods, /var/lib/kubelet/device-plugins,
        /var/lib/cni, /run/containerd/s): each node gets its own, and this machine keeps its own.
        """
        f = self.folder
        kubelet = [
            self.kubelet,
            f"--config={f}/kubelet.json",
            f"--kubeconfig={f}/kubeconfig",
            f"--root-dir={f}/kubelet",
            f"--cert-dir={f}/kubelet/pki",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{f}/containerd.sock",
        ]
        return f"""set -e
mount --make-rshared /
mount --bind {f}/var-log /var/log
mount --bind {f}/var-lib /var/lib
mount -t tmpfs tmpfs /run
containerd --config {f}/containerd.toml >>{f}/containerd.log 2>&1 &
until test -S {f}/containerd.sock; do sleep 0.1; done
{" ".join(map(str, kubelet))} >>{f}/kubelet.log 2>&1 &
wait
"""

    def containerd(self) -> str:
        f = self.folder
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = "{f}/containerd"
state = "{f}/containerd-state"
[grpc]
address = "{f}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{f}/opt"
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
# Without CAP_SYS_RESOURCE nobody may lower an OOM score, and sandboxes would fail.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[{cri}.cni]
bin_dir = "{self.runtime.plugins}"
conf_dir = "{f}/cni"
[{cri}.containerd]
snapshotter = "overlayfs"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{self.runtime.runc}"
"""

    def cni(self) -> dict[str, object]:
        """One bridge and one book of addresses for all nodes: they share a network namespace."""
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.network.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.folder.parent / "pod-addresses"),
        }
        bridge = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipMasq": False,
            "ipam": addresses,
        }
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}

    def kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzBindAddress": self.address,
            "readOnlyPort": 0,
            "tlsCertFile": str(self.serving.certificate),
            "tlsPrivateKeyFile": str(self.serving.key),
            "authentication": {
                "x509": {"clientCAFile": str(self.client_ca)},
                "anonymous": {"enabled": False},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [self.network.host],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": str(self.folder / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            # Two nodes share one machine, so neither may manage its cgroups as a whole.
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            # A full disk of this machine is no reason to throw a test's pods out.
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100,
            "nodeLeaseDurationSeconds": self.grace_seconds,
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "1m",  # where nothing has changed: its lease tells that it is there
            # This old kubelet now and then overlooks that a pod has ended until it goes through all of them.
            "syncFrequency": "5s",
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
        }
