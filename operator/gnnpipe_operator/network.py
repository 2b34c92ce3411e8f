"""What NCCL is told about the network: spec.worker.network as environment, resources and capabilities."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Network:
    env: dict[str, str] = field(default_factory=dict)
    resources: dict[str, str] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()  # beyond none: such a pod no longer meets the restricted standard


# A rank that lost its neighbour must fail, not hang: the gang is restarted as soon as one pod ends.
_ALWAYS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_DEBUG": "WARN"}

NETWORKS: dict[str, Network] = {
    # Plain TCP. Without the switch NCCL probes for InfiniBand devices that the container cannot use.
    "default": Network(env={**_ALWAYS, "NCCL_IB_DISABLE": "1"}),
    # InfiniBand or RoCE. Pinned memory needs IPC_LOCK; the device itself is the cluster's own resource name,
    # which spec.worker.resources gives.
    "rdma": Network(
        env={**_ALWAYS, "NCCL_IB_DISABLE": "0", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_IB_TIMEOUT": "22"},
        capabilities=("IPC_LOCK",),
    ),
    # AWS Elastic Fabric Adapter, through libfabric (aws-ofi-nccl in the image).
    "efa": Network(
        env={**_ALWAYS, "FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"},
        resources={"vpc.amazonaws.com/efa": "1"},
    ),
}
