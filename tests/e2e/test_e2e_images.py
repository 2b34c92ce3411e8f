"""The images as they run on the cluster."""

from __future__ import annotations

import json

import project_images
from harness.images import base_archive
from installation import Installation

FEW_BYTES = 200_000_000  # what the operator may add to its base


def test_the_operators_image_is_small_and_knows_what_is_in_it(installation: Installation) -> None:
    archive = dict(zip(project_images.NAMES, project_images.build(), strict=True))["operator"]
    assert archive.stat().st_size - base_archive().stat().st_size < FEW_BYTES
    inside = ("exec", installation.operator_pod()["metadata"]["name"], "--", "sh", "-c")
    bill = json.loads(installation.kubectl(*inside, "cat /app/sbom.cdx.json"))
    packages = {component["name"]: component for component in bill["components"]}
    assert {"gnnpipe", "kopf", "pydantic"} <= packages.keys()
    assert packages["gnnpipe"]["licenses"] == [{"license": {"name": "Apache-2.0"}}]
    assert not {"pip", "setuptools", "torch"} & packages.keys()
    assert installation.kubectl(*inside, "for p in pip pip3 cc gcc; do command -v $p; done; true") == ""
