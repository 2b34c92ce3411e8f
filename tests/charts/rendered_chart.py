"""The chart as Helm renders it, parsed; the tests ask for objects by kind."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/gnnpipe"

MONITORING = "monitoring.coreos.com/v1"
OLD, NEW = "1.20.2", "1.33.0"  # the oldest Kubernetes that the chart takes, and one that knows CEL

Object = dict[str, Any]


@dataclass(frozen=True)
class Rendered:
    """Every object of one rendering, in a release called `release` in the namespace `operators`."""

    objects: list[Object]

    def kinds(self) -> set[str]:
        return {found["kind"] for found in self.objects}

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Object:
        """The only object of a kind, or the one of that name."""
        found = [o for o in self.all(kind) if name in ("", o["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} objects of kind {kind} {name}"
        return found[0]

    def pod(self) -> Object:
        """The pod template of the operator."""
        template: Object = self.one("Deployment")["spec"]["template"]
        return template

    def container(self) -> Object:
        (container,) = self.pod()["spec"]["containers"]
        found: Object = container
        return found


@dataclass(frozen=True)
class Helm:
    """Helm with an empty home of its own: nothing of the person's settings has a say."""

    binary: Path
    home: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        homes = {f"HELM_{kind}_HOME": str(self.home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [self.binary, *arguments],
            env={**os.environ, **homes},
            capture_output=True,
            text=True,
            check=False,
        )

    def template(
        self, values: Object | None = None, kube: str = NEW, apis: tuple[str, ...] = (MONITORING,)
    ) -> subprocess.CompletedProcess[str]:
        """`values` by dotted path: {"crd.install": False}."""
        return self(
            *("template", "release", str(CHART), "--namespace", "operators", "--kube-version", kube),
            *(part for api in apis for part in ("--api-versions", api)),
            *(
                part
                for path, value in (values or {}).items()
                for part in ("--set-json", f"{path}={json.dumps(value)}")
            ),
        )

    def render(
        self, values: Object | None = None, kube: str = NEW, apis: tuple[str, ...] = (MONITORING,)
    ) -> Rendered:
        return _rendered(self, json.dumps(values), kube, apis)


@cache
def _rendered(helm: Helm, values: str, kube: str, apis: tuple[str, ...]) -> Rendered:
    """Rendered once for all tests that ask for the same: a call of Helm takes a good part of a second."""
    done = helm.template(json.loads(values), kube, apis)
    assert done.returncode == 0, done.stderr
    return Rendered([found for found in yaml.safe_load_all(done.stdout) if found])
