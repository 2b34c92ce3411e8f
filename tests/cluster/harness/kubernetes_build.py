"""Kubernetes built from Debian's source package: 5 to 8 minutes on two cores, once per machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from .debian import Apt
from .errors import NoCluster

VERSION = "1.20.2"  # what Debian 12 carries; newer suites carry kubectl's part of the source only
TOOLCHAIN = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
OPENAPI_TAG = re.compile(rb"^// \+k8s:openapi-gen=", re.MULTILINE)


class KubernetesBuild:
    """The unpacked, mended source and the Go toolchain below `folder`, kept between builds of commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.toolchain = folder / "toolchain"
        self.source = folder / "gopath/src/k8s.io/kubernetes"

    def prepare(self) -> None:
        """Fetch toolchain and source and mend the two things that keep it from working."""
        done = self.folder / "prepared"
        if done.exists():
            return
        apt = Apt(self.folder / "apt")
        apt.unpack(TOOLCHAIN, self.toolchain)
        self._unpack_source(apt.source_tarball("kubernetes", self.folder / "tarball"))
        self._replace_reflect2()
        self._generate_openapi()
        done.touch()

    def build(self, commands: Sequence[str], into: Path) -> None:
        """Build commands such as kube-apiserver; each appears in `into` only when it is complete."""
        self.prepare()
        output = self.folder / "bin"
        output.mkdir(exist_ok=True)
        packages = [f"./cmd/{name}" for name in commands]
        self._go("build", "-ldflags", linker_flags(), "-o", f"{output}/", *packages)
        into.mkdir(parents=True, exist_ok=True)
        for name in commands:
            (output / name).rename(into / name)

    def _unpack_source(self, tarball: Path) -> None:
        shutil.rmtree(self.source, ignore_errors=True)
        self.source.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(tarball) as archive:
            top = archive.getnames()[0].split("/")[0]
            archive.extractall(self.source.parent, filter="tar")
        (self.source.parent / top).rename(self.source)
        if not (self.source / "cmd/kube-apiserver").is_dir():
            raise NoCluster(
                f"the source package {tarball.name} holds no API server (Debian 12's does): "
                "set KUBEBUILDER_ASSETS to a folder with Kubernetes binaries"
            )

    def _replace_reflect2(self) -> None:
        """The vendored copy is too old for Go 1.19: the API server would die at the first custom resource."""
        vendored = self.source / "vendor/github.com/modern-go/reflect2"
        shutil.rmtree(vendored)
        shutil.copytree(self.toolchain / "usr/share/gocode/src/github.com/modern-go/reflect2", vendored)

    def _generate_openapi(self) -> None:
        """The tarball lacks one generated file; build/root/Makefile.generated_files shows the call."""
        generator = self.folder / "openapi-gen"
        self._go("build", "-o", str(generator), "./vendor/k8s.io/kube-openapi/cmd/openapi-gen")
        tagged = ",".join(f"k8s.io/kubernetes/{folder}" for folder in self._openapi_packages())
        options = {
            "-i": tagged,
            "-p": "k8s.io/kubernetes/pkg/generated/openapi",
            "-O": "zz_generated.openapi",
            "-h": "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
            "-r": str(self.folder / "openapi-violations"),
        }
        self._run([str(generator), *(word for pair in options.items() for word in pair)])

    def _openapi_packages(self) -> list[str]:
        """Source folders that ask for OpenAPI definitions, staging ones under their vendor name."""
        roots = {root: root for root in ("pkg", "cmd", "plugin")} | {"staging/src/k8s.io": "vendor/k8s.io"}
        found = {
            name + str(path.parent).removeprefix(str(self.source / root))
            for root, name in roots.items()
            for path in (self.source / root).rglob("*.go")
            if OPENAPI_TAG.search(path.read_bytes())
        }
        return sorted(each for each in found if not re.search(r"/(code-generator|sample-)", each))

    def _go(self, *arguments: str) -> None:
        self._run([str(self.toolchain / "usr/lib/go-1.19/bin/go"), *arguments])

    def _run(self, command: Sequence[str]) -> None:
        settings = {
            "GOROOT": str(self.toolchain / "usr/lib/go-1.19"),
            "GOPATH": str(self.folder / "gopath"),
            "GOCACHE": str(self.folder / "gocache"),
            "GO111MODULE": "off",
            "CGO_ENABLED": "0",
            "PATH": f"{self.toolchain / 'usr/lib/go-1.19/bin'}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["nice", "-n", "10", *command],
            cwd=self.source,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            short = " ".join(command)[:120]
            raise NoCluster(f"building Kubernetes failed at `{short}`:\n{done.stderr.strip()[-1500:]}")


def linker_flags() -> str:
    """Strip, and set the version: without it the server says v0.0.0 and Helm refuses it."""
    major, minor, _ = VERSION.split(".")
    values = {"gitVersion": f"v{VERSION}", "gitMajor": major, "gitMinor": minor}
    packages = ("client-go/pkg/version", "component-base/version")
    return " ".join(
        ["-s", "-w"]
        + [
            f"-X k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}"
            for package in packages
            for name, value in values.items()
        ]
    )
