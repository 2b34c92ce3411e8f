"""Container images without a registry: a Debian base by debootstrap, Dockerfiles by buildah. Needs root."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from . import debian
from .binaries import cache_folder, say
from .errors import NoCluster

BASE_IMAGE = "localhost/gnnpipe-base:1"
BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
ARCHIVES_KEPT = 2  # per Dockerfile
LAYERS_KEPT = 200  # a new build adds about a dozen, small ones unless a dependency changed
BASE_DOCKERFILE = 'FROM scratch\nADD base.tar /\nENV LANG=C.UTF-8\nCMD ["python3"]\n'


def build_image(
    dockerfile: Path,
    tag: str,
    *,
    context: Path,
    inputs: Iterable[Path],
    build_args: Mapping[str, str] | None = None,
    volumes: Mapping[Path, Path] | None = None,
) -> Path:
    """Build `dockerfile` on the Debian base and return a docker-archive that holds it as `tag`.

    `inputs` are the files and folders below `context` that it copies: unless one of them, the Dockerfile or an
    argument changed, the archive of an earlier run is returned. `volumes` (here -> there) are mounted
    read-only during the build only.
    """
    arguments = {"BASE_IMAGE": BASE_IMAGE, **(build_args or {})}
    base = base_archive()
    key = content_key([dockerfile, *inputs], [tag, base.name, *map(str, sorted(arguments.items()))])
    archive = _folder() / f"{dockerfile.stem}-{key}.tar"
    with FileLock(_folder() / f"{dockerfile.stem}.lock"):  # two images may be built at once
        if archive.exists():
            return archive
        say(f"building the image {tag} from {dockerfile.name}")
        mounts = {**pip_volumes(), **(volumes or {})}
        options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        options += [f"--volume={here}:{there}:ro" for here, there in mounts.items()]
        _forget_old(dockerfile.stem)
        _load_base(base)
        _build(dockerfile, tag, context, [*options, "--layers"])
        return _save(tag, archive)


def project_image(project: Path, name: str, tag: str) -> Path:
    """docker/NAME.Dockerfile of this project ("operator" or "trainer"), as `build_image` returns it."""
    shared = ("api", name, "docker", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
    dockerfile = project / "docker" / f"{name}.Dockerfile"
    return build_image(dockerfile, tag, context=project, inputs=[project / each for each in shared])


def base_archive() -> Path:
    """The base as a docker-archive: Debian's minimum with Python, made once (about 90 s)."""
    if os.geteuid() != 0:
        raise NoCluster("images are built with debootstrap and buildah, which need root")
    debian.install(["debootstrap", "buildah", "runc", "uidmap"])
    suite = _suite()
    archive = _folder() / f"base-{suite}.tar"
    with FileLock(_folder() / "base.lock"):
        if archive.exists():
            return archive
        say(f"making a base image of Debian {suite} with debootstrap (once; a minute or two)")
        work = _folder() / "base"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        root = work / "root"
        options = ["--variant=minbase", f"--include={','.join(BASE_PACKAGES)}"]
        _run(["debootstrap", *options, suite, str(root), debian.mirror()])
        shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        _run(["tar", "--numeric-owner", "-C", str(root), "-cf", str(work / "base.tar"), "."])
        (work / "Dockerfile").write_text(BASE_DOCKERFILE)
        _build(work / "Dockerfile", BASE_IMAGE, work, [])
        _save(BASE_IMAGE, archive)
        shutil.rmtree(work)
        return archive


def content_key(paths: Iterable[Path], words: Sequence[str]) -> str:
    """A short name for what goes into a build: changes when any file's content or name changes."""
    digest = hashlib.sha256("\0".join(words).encode())
    for path in paths:
        files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"\0{file.relative_to(path.parent)}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def pip_volumes() -> dict[Path, Path]:
    """What pip needs inside a build to find packages as it does here: its settings and the folders they name."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = " ".join(str(ast.literal_eval(value)).split())
    written = _folder() / "pip.conf"
    written.write_text("".join(["[global]\n", *(f"{name} = {value}\n" for name, value in settings.items())]))
    words = [word.removeprefix("file://") for value in settings.values() for word in value.split()]
    named = [Path(word) for word in words if word.startswith("/")]
    # A simple index in a folder links to wheels beside it, so its parent goes along.
    folders = {path.parent if path.name == "simple" else path for path in named if path.exists()}
    return {written: Path("/etc/pip.conf"), **{path: path for path in sorted(folders)}}


def _folder() -> Path:
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forget_old(stem: str) -> None:
    """A trainer's image takes gigabytes: archives of older code go, and layers when there are too many."""
    archives = sorted(_folder().glob(f"{stem}-*.tar"), key=lambda path: path.stat().st_mtime)
    for archive in archives[:-ARCHIVES_KEPT]:
        archive.unlink()
    layers = _buildah("images", "--all", "--quiet").split()
    nobody_builds = not _buildah("containers", "--quiet").split()
    if len(layers) > LAYERS_KEPT and nobody_builds:
        _buildah("rmi", "--all", "--force")


def _suite() -> str:
    release = Path("/etc/os-release").read_text()
    found = re.search(r"(?m)^VERSION_CODENAME=(\w+)", release)
    if "ID=debian" not in release or found is None:
        raise NoCluster("the base image is made with debootstrap, on Debian only")
    return found[1]


def _load_base(archive: Path) -> None:
    if BASE_IMAGE not in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        _buildah("pull", "--quiet", f"docker-archive:{archive}")


def _build(dockerfile: Path, tag: str, context: Path, options: Sequence[str]) -> None:
    fixed = ["--isolation=chroot", "--network=host", "--pull-never", f"--file={dockerfile}", f"--tag={tag}"]
    _buildah("bud", *fixed, *options, str(context))


def _save(tag: str, archive: Path) -> Path:
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    _buildah("push", tag, f"docker-archive:{part}:{tag}")
    part.rename(archive)
    return archive


def _buildah(command: str, *arguments: str) -> str:
    """buildah with storage of its own, so that the person's images stay untouched."""
    policy = _folder() / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    storage = [f"--root={_folder()}/storage", f"--runroot={_folder()}/run", "--storage-driver=overlay"]
    trust = [f"--signature-policy={policy}"] if command in ("bud", "pull", "push") else []
    return _run(["buildah", *storage, command, *trust, *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(["nice", "-n", "10", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise NoCluster(f"`{' '.join(command)[:200]}` failed:\n{said}")
    return done.stdout
