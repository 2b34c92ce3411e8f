"""kubectl with one cluster's credentials: what a test does as a person would do it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import NO_PROXY


class KubectlError(Exception):
    """kubectl said no; the message is what it said."""


@dataclass(frozen=True)
class Kubectl:
    """Runs kubectl, in `namespace` where one is given."""

    binary: Path
    kubeconfig: Path
    namespace: str | None = None

    def __call__(self, *arguments: str, stdin: str | None = None, timeout_seconds: float = 120) -> str:
        """What kubectl prints. Raises KubectlError where it fails."""
        scope = [f"--namespace={self.namespace}"] if self.namespace else []
        done = subprocess.run(
            [self.binary, *scope, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            env={**os.environ, **NO_PROXY, "KUBECONFIG": str(self.kubeconfig)},
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, manifest: Mapping[str, Any]) -> str:
        return self("apply", "-f", "-", stdin=json.dumps(manifest))

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json` as Python data."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def inside(self, namespace: str) -> Kubectl:
        return Kubectl(self.binary, self.kubeconfig, namespace)
