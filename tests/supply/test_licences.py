"""What the project brings along, and under which licences."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import licences
import pytest

ROOT = Path(__file__).parents[2]


def test_every_package_in_the_images_has_a_welcome_licence() -> None:
    assert licences.refused() == []


@pytest.mark.parametrize(
    ("expression", "bad"),
    [
        ("MIT", []),
        ("Apache-2.0 AND (MIT OR GPL-3.0-only)", []),
        ("MIT AND GPL-3.0-only", ["GPL-3.0-only"]),
        ("AGPL-3.0-only OR SSPL-1.0", ["AGPL-3.0-only OR SSPL-1.0"]),
        ("unknown", ["unknown"]),
    ],
)
def test_a_licence_that_asks_for_more_is_refused(expression: str, bad: list[str]) -> None:
    assert licences.unwelcome(expression) == bad


def test_the_list_of_licences_is_that_of_the_installed_packages() -> None:
    assert licences.PAGE.read_text() == licences.page(), "run: .venv/bin/python docker/licences.py"


def test_an_image_needs_what_its_requirements_need_in_turn() -> None:
    assert {"kopf", "aiohttp"} <= licences.needed("operator")
    assert {"torch", "sympy"} <= licences.needed("trainer")
    assert "torch" not in licences.needed("operator")
    assert "pytest" not in licences.needed("trainer")


def test_everything_that_is_installed_has_one_exact_version() -> None:
    pins = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text()))
    pinned = {licences.canonicalize_name(name) for name in pins}
    needed = licences.needed("operator") | licences.needed("trainer")
    assert needed - pinned == set()


def test_the_project_says_its_own_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / project["license-files"][0]).read_text()[:200]
