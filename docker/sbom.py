"""Write what is installed beside this interpreter as a CycloneDX 1.5 bill of materials to standard output.

Runs inside the image build, where only the standard library can be counted on.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any


def licence(package: Distribution) -> str:
    """The SPDX field where there is one, else the classifiers, else the first line of the free text."""
    expression = said(package, "License-Expression")
    if expression:
        return expression[0]
    named = [c.rsplit(" :: ", 1)[-1] for c in said(package, "Classifier") if c.startswith("License :: ")]
    if named:
        return " AND ".join(named)
    free_text = [line for text in said(package, "License") for line in text.strip().splitlines()]
    return free_text[0] if free_text else "unknown"


def said(package: Distribution, name: str) -> list[str]:
    return package.metadata.get_all(name) or []


def component(package: Distribution) -> dict[str, Any]:
    name, version = package.metadata["Name"], package.version
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        "licenses": [{"license": {"name": licence(package)}}],
    }


def bill_of_materials(image: str) -> dict[str, Any]:
    packages = sorted(distributions(), key=lambda package: package.metadata["Name"].lower())
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": image}},
        "components": [component(package) for package in packages],
    }


if __name__ == "__main__":
    json.dump(bill_of_materials(sys.argv[1]), sys.stdout, indent=2)
