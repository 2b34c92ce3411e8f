"""DGL in a virtual environment of its own: it wants an older numpy than GNNPipe does."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from gnnpipe_trainer.graph.cache import default_folder

REQUIREMENTS = (
    "dgl==1.1.3",
    "numpy<2",
    "setuptools<81",
)  # the last: DGL reads its version with pkg_resources


class NoDGL(RuntimeError):
    """DGL is not to be had here; the sentence says why."""


def dgl_python(folder: Path | None = None) -> Path:
    """The Python that has DGL; its environment is made at the first call.

    torch comes from GNNPipe's environment, so both use the very same build of it.
    """
    folder = default_folder() / "bench-dgl" if folder is None else folder
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if ready.exists() and ready.read_text() == _identity():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS])
    packages = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    ours = sysconfig.get_path("purelib")
    (folder / packages / "zz-gnnpipe.pth").write_text(
        f"{ours}\n"
    )  # behind its own, so that numpy is the old one
    _run([str(python), "-c", "import dgl"])
    ready.write_text(_identity())
    return python


def _identity() -> str:
    return f"{sys.prefix} {sys.version_info[:2]} {REQUIREMENTS}"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoDGL(f"DGL cannot be used here: {' '.join(command[:4])} ...: {last}")
