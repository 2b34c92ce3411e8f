"""Ask the public list of known weaknesses about every pinned package: `make audit`.

Fails when one is known to be weak. Where the list cannot be reached it says so, and fails only if told to insist:
a machine without that way out can still run all other checks.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

log = logging.getLogger("audit")
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def ask(python: str) -> dict[str, Any]:
    """pip-audit's answer, from the environment of this interpreter; empty where it got none."""
    command = [python, "-m", "pip_audit", "--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format=json", "--progress-spinner=off"], capture_output=True, text=True
    )
    if not done.stdout.strip():
        log.warning(done.stderr.strip()[-600:])
        return {}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def verdict(answer: dict[str, Any], insist: bool) -> tuple[int, str]:
    """Exit code and one paragraph. A package that the service does not know counts as not audited."""
    packages = answer.get("dependencies", [])
    audited = [each for each in packages if "skip_reason" not in each]
    weak = [
        f"{each['name']} {each['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or '-'}"
        for each in audited
        for found in each["vulns"]
    ]
    if weak:
        return 1, "\n".join(["known weaknesses:", *weak])
    if not audited:
        return int(insist), "NOT AUDITED: the list of known weaknesses cannot be reached from here"
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    beside = f"; not on the list: {', '.join(unknown)}" if unknown else ""
    return 0, f"{len(audited)} packages audited, no known weakness{beside}"


if __name__ == "__main__":
    logging.basicConfig(format="audit: %(message)s")
    code, told = verdict(ask(sys.executable), insist="--insist" in sys.argv)
    log.warning(told)
    sys.exit(code)
