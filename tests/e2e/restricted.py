"""The restricted Pod Security Standard as the API server of the test cluster enforces it: on every pod there is.

Kubernetes 1.20 has PodSecurityPolicy for this; newer ones have Pod Security admission and the namespace's label.
"""

from __future__ import annotations

from typing import Any

from harness.kubectl import Kubectl

ADMISSION = "PodSecurityPolicy"
NAME = "restricted"
ANYTHING = {"rule": "RunAsAny"}  # where the standard says nothing


def enforce(kubectl: Kubectl) -> None:
    for part in (policy(), role(), binding()):
        kubectl.apply(part)


def policy() -> dict[str, Any]:
    only_the_default = {
        f"seccomp.security.alpha.kubernetes.io/{what}": "runtime/default"
        for what in ("allowedProfileNames", "defaultProfileName")
    }
    return {
        "apiVersion": "policy/v1beta1",
        "kind": "PodSecurityPolicy",
        "metadata": {"name": NAME, "annotations": only_the_default},
        "spec": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "requiredDropCapabilities": ["ALL"],
            "readOnlyRootFilesystem": True,  # more than the standard asks for
            "runAsUser": {"rule": "MustRunAsNonRoot"},
            "runAsGroup": ANYTHING,
            "seLinux": ANYTHING,
            "supplementalGroups": ANYTHING,
            "fsGroup": ANYTHING,
            "volumes": [
                "configMap",
                "downwardAPI",
                "emptyDir",
                "persistentVolumeClaim",
                "projected",
                "secret",
            ],
        },
    }


def role() -> dict[str, Any]:
    use = {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "resourceNames": [NAME]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": NAME},
        "rules": [use | {"verbs": ["use"]}],
    }


def binding() -> dict[str, Any]:
    """For everybody: there is no other policy, so no pod is without it."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": NAME},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": "system:authenticated"}],
    }
