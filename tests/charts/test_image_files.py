"""The Dockerfiles against what the chart and the contract promise of the images; a cluster test builds them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from rendered_chart import ROOT, Helm

from gnnpipe_api.contract import MASTER_PORT, MONITOR_PORT
from gnnpipe_trainer.rank_environment import ALLOCATOR

OPERATOR, TRAINER = ROOT / "docker/operator.Dockerfile", ROOT / "docker/trainer.Dockerfile"


def final_stage(path: Path) -> str:
    return re.split(r"^FROM .*$", path.read_text(), flags=re.MULTILINE)[-1]


@pytest.mark.parametrize("path", [OPERATOR, TRAINER], ids=lambda path: path.stem)
def test_every_stage_stands_on_the_base_that_the_builder_chose(path: Path) -> None:
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", path.read_text(), flags=re.MULTILINE)
    named = {name for _, name in stages}
    assert {base for base, _ in stages if base not in named} == {"${BASE_IMAGE}"}
    assert stages[-1] == ("${BASE_IMAGE}", "")


@pytest.mark.parametrize("path", [OPERATOR, TRAINER], ids=lambda path: path.stem)
def test_a_change_of_the_code_leaves_the_layer_with_the_dependencies_alone(path: Path) -> None:
    copies = re.findall(r"^COPY (.*)$", final_stage(path), flags=re.MULTILINE)
    assert copies == ["--from=dependencies /app /app", "--from=build /gnnpipe /app"]
    (stage,) = re.findall(r"^FROM \S+ AS dependencies$(.*?)^FROM ", path.read_text(), flags=re.M | re.S)
    copied = re.findall(r"^COPY (.*)$", stage, flags=re.MULTILINE)
    assert copied == ["constraints.txt ./", "--from=requirements /src/requirements.txt ./"]


@pytest.mark.parametrize("path", [OPERATOR, TRAINER], ids=lambda path: path.stem)
def test_dependencies_are_pinned(path: Path) -> None:
    installs = re.findall(r"/pip/bin/pip [^\n]*install (?:[^\n]*\\\n)*[^\n]*", path.read_text())
    assert len(installs) == 2
    assert all("-c constraints.txt" in install or "--no-deps" in install for install in installs)


@pytest.mark.parametrize("extra", ["operator", "trainer"])
def test_an_image_gets_the_requirements_of_its_extra_with_exact_versions(extra: str) -> None:
    command = [sys.executable, str(ROOT / "docker/requirements.py"), extra]
    wanted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    others = {"operator": "torch", "trainer": "kopf"}
    assert "pydantic" in [each.partition("==")[0] for each in wanted]
    assert all("==" in each for each in wanted)
    assert others[extra] not in [each.partition("==")[0] for each in wanted]


@pytest.mark.parametrize("path", [OPERATOR, TRAINER], ids=lambda path: path.stem)
def test_the_image_runs_as_the_user_that_the_chart_names(helm: Helm, path: Path) -> None:
    context = helm.render().pod()["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in final_stage(path)


def test_the_images_expose_the_ports_that_are_agreed_on(helm: Helm) -> None:
    ports = {port["containerPort"] for port in helm.render().container()["ports"]}
    assert exposed(OPERATOR) == ports
    assert exposed(TRAINER) == {MONITOR_PORT, MASTER_PORT}


def test_the_trainer_starts_with_what_ranks_want_of_the_c_library() -> None:
    (settings,) = re.findall(r"^ENV ((?:.*\\\n)*.*)", final_stage(TRAINER), flags=re.MULTILINE)
    given = dict(each.split("=", 1) for each in settings.replace("\\\n", " ").split())
    assert ALLOCATOR.items() <= given.items()


def exposed(path: Path) -> set[int]:
    (line,) = re.findall(r"^EXPOSE (.*)$", path.read_text(), flags=re.MULTILINE)
    return {int(port) for port in line.split()}


def test_the_bill_of_materials_names_what_is_installed_with_version_and_licence() -> None:
    command = [sys.executable, str(ROOT / "docker/sbom.py"), "gnnpipe-operator"]
    bill = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert bill["metadata"]["component"]["name"] == "gnnpipe-operator"
    packages = {component["name"]: component for component in bill["components"]}
    assert packages["kopf"]["version"] == version("kopf")
    assert packages["kopf"]["licenses"] == [{"license": {"name": "MIT"}}]
    assert packages["pydantic"]["purl"] == f"pkg:pypi/pydantic@{version('pydantic')}"
