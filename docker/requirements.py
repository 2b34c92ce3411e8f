"""Write what the project needs to run one of its extras to standard output, one requirement per line.

Runs inside the image build before the sources are there: so that a change of the code installs nothing anew.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extra: str) -> list[str]:
    project = tomllib.loads(pyproject.read_text())["project"]
    found: list[str] = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return found


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1])) + "\n")
