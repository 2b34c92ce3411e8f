"""A certificate authority for one cluster, by the openssl command."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import NoCluster

VALID_DAYS = "30"


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs what the cluster's parts show each other."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise NoCluster("the cluster's certificates need the openssl command: apt-get install openssl")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.root = Pair(folder / "ca.crt", folder / "ca.key")
        self.new_key(self.root.key)
        subject = ["-subj", "/CN=gnnpipe-test-ca", "-days", VALID_DAYS]
        _openssl("req", "-x509", "-new", "-key", self.root.key, "-out", self.root.certificate, *subject)

    def new_key(self, path: Path) -> None:
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)

    def signing_keys(self, file_name: str) -> tuple[Path, Path]:
        """A private key and its public half, as the API server wants them for service accounts."""
        private, public = self.folder / f"{file_name}.key", self.folder / f"{file_name}.pub"
        self.new_key(private)
        _openssl("pkey", "-in", private, "-pubout", "-out", public)
        return private, public

    def issue(
        self, file_name: str, common_name: str, *, groups: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> Pair:
        """A certificate for a client (`groups` are its Kubernetes groups) or a server (`addresses`)."""
        pair = Pair(self.folder / f"{file_name}.crt", self.folder / f"{file_name}.key")
        request, extensions = self.folder / f"{file_name}.csr", self.folder / f"{file_name}.ext"
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={common_name}"
        names = ",".join(f"{'IP' if each[0].isdigit() else 'DNS'}:{each}" for each in addresses)
        lines = ["extendedKeyUsage=clientAuth,serverAuth", f"subjectAltName={names}" if names else ""]
        extensions.write_text("\n".join(lines) + "\n")
        self.new_key(pair.key)
        _openssl("req", "-new", "-key", pair.key, "-subj", subject, "-out", request)
        signer: list[str | Path] = ["-CA", self.root.certificate, "-CAkey", self.root.key, "-CAcreateserial"]
        output: list[str | Path] = ["-days", VALID_DAYS, "-extfile", extensions, "-out", pair.certificate]
        _openssl("x509", "-req", "-in", request, *signer, *output)
        return pair

    def kubeconfig(self, path: Path, url: str, pair: Pair) -> Path:
        """A kubeconfig that holds everything in itself, so that a person may copy it elsewhere."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "gnnpipe",
            "contexts": [{"name": "gnnpipe", "context": {"cluster": "gnnpipe", "user": "gnnpipe"}}],
            "clusters": [
                {
                    "name": "gnnpipe",
                    "cluster": {"server": url, "certificate-authority-data": _base64(self.root.certificate)},
                }
            ],
            "users": [
                {
                    "name": "gnnpipe",
                    "user": {
                        "client-certificate-data": _base64(pair.certificate),
                        "client-key-data": _base64(pair.key),
                    },
                }
            ],
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=2))
        return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
