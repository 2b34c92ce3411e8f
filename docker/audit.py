"""Ask the public lists of known weaknesses about every pinned package: `make audit`.

Fails when one is known to be weak, or was taken back by its authors. What no list could be asked about is named;
that fails only if told to insist: a machine without that way out can still run all other checks.
"""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

log = logging.getLogger("audit")
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
SECONDS = 20


def ask(python: str) -> list[dict[str, Any]]:
    """What pip-audit, in the environment of this interpreter, says of each pinned package."""
    command = [python, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format=json", "--progress-spinner=off"], capture_output=True, text=True
    )
    if not done.stdout.strip():
        log.warning(done.stderr.strip()[-600:])
        return []
    answer: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return answer


def ask_index(index: str, name: str, version: str) -> dict[str, Any]:
    """What the package index's own page says, in pip-audit's words.

    A mirror that has no page for each version still has one for the newest, with its weaknesses. Of an older
    version that page tells only whether it was taken back, so it does not count as audited.
    """
    try:
        with urllib.request.urlopen(f"{index}/{name}/json", timeout=SECONDS) as answer:
            page = json.load(answer)
    except (OSError, ValueError) as error:
        return {"name": name, "version": version, "skip_reason": str(error)}
    newest = page["info"]["version"]
    found = [
        {"id": each["id"], "fix_versions": each["fixed_in"]}
        for each in page["vulnerabilities"]
        if newest == version and not each.get("withdrawn")
    ]
    if any(file["yanked"] for file in page["releases"].get(version, [])):
        found.append({"id": "taken back by its authors", "fix_versions": [newest]})
    if newest != version and not found:
        return {"name": name, "version": version, "skip_reason": f"the index tells of {newest} only"}
    return {"name": name, "version": version, "vulns": found}


def second_opinion(answer: list[dict[str, Any]], index: str) -> list[dict[str, Any]]:
    """The answer, with the index's word on every package that it leaves open."""
    settled = {canonicalize_name(each["name"]): each for each in answer if "skip_reason" not in each}
    pins = [(name, version) for name, version in pinned() if canonicalize_name(name) not in settled]
    with ThreadPoolExecutor(8) as several:
        return [*settled.values(), *several.map(lambda pin: ask_index(index, *pin), pins)]


def pinned() -> list[tuple[str, str]]:
    return re.findall(r"(?m)^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text())


def verdict(packages: list[dict[str, Any]], insist: bool) -> tuple[int, str]:
    """Exit code and one paragraph. A package that no list knows counts as not audited."""
    audited = [each for each in packages if "skip_reason" not in each]
    weak = [
        f"{each['name']} {each['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or '-'}"
        for each in audited
        for found in each["vulns"]
    ]
    if weak:
        return 1, "\n".join(["known weaknesses:", *weak])
    if not audited:
        return int(insist), "NOT AUDITED: no list of known weaknesses can be reached from here"
    unknown = [f"{each['name']} {each['version']}" for each in packages if "skip_reason" in each]
    beside = f"; NOT AUDITED: {', '.join(unknown)}" if unknown else ""
    return int(insist and bool(unknown)), f"{len(audited)} packages audited, no known weakness{beside}"


if __name__ == "__main__":
    from pip._internal.models.index import PyPI  # the index that this pip would use, named in one place

    logging.basicConfig(format="audit: %(message)s")
    code, told = verdict(second_opinion(ask(sys.executable), PyPI.pypi_url), insist="--insist" in sys.argv)
    log.warning(told)
    sys.exit(code)
