"""The Debian base image: one the engine has, one it can pull, or one built from the archive."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from deploy.services.errors import SetupError
from deploy.services.private import find_program
from deploy.up.logged import run_logged
from deploy.up.progress import Progress, Step
from deploy.up.workplace import workplace

OWN = "svc-base/debian:bookworm"
PUBLIC = "debian:bookworm-slim"
_SUITE = "bookworm"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PULL_SECONDS = 90.0
_BUILD_SECONDS = 900.0
_ROOM_NEEDED = 1_500_000_000


def present(client: str, docker_host: str) -> str | None:
    """The base image the engine has already, or None."""
    for reference in (OWN, PUBLIC):
        inspect = [client, "-H", docker_host, "image", "inspect", "--format", "{{.Id}}", reference]
        if subprocess.run(inspect, capture_output=True, timeout=30, check=False).returncode == 0:
            return reference
    return None


def ensure_base_image(client: str, docker_host: str, *, log: Path, progress: Progress) -> str:
    """The reference of a base image the engine has: pulled or built when there was none."""
    existing = present(client, docker_host)
    if existing is not None:
        return existing
    with progress.step("base image") as step:
        step.now(f"pulling {PUBLIC}")
        if pull(client, docker_host, log=log):
            step.done(f"pulled {PUBLIC}")
            return PUBLIC
        _build(client, docker_host, log, step)
        step.done(f"{OWN}, built from the Debian archive (no public registry answers)")
        return OWN


def pull(client: str, docker_host: str, *, log: Path) -> bool:
    """Try the public image; False when no public registry answers in time."""
    try:
        run_logged(
            (client, "-H", docker_host, "pull", "-q", PUBLIC), log=log, seconds=_PULL_SECONDS
        )
    except SetupError:
        return False
    return True


def can_build() -> bool:
    """True when a tool is installed that makes a root file system from the archive."""
    return find_program("mmdebstrap", "debootstrap") is not None


def _build(client: str, docker_host: str, log: Path, step: Step) -> None:
    if not can_build():
        raise SetupError(
            f"{PUBLIC} cannot be pulled, and neither mmdebstrap nor debootstrap is installed. "
            "Install one of them or set SVC_BASE_IMAGE_DEBIAN."
        )
    with workplace(_roomy()) as place:
        archive = place / "rootfs.tar"
        step.now(f"building {_SUITE} from the Debian archive")
        mmdebstrap = find_program("mmdebstrap")
        if mmdebstrap is not None:
            _with_mmdebstrap(mmdebstrap, archive, log)
        else:
            _with_debootstrap(place / "root", archive, log)
        step.now("importing it into the engine")
        run_logged(
            (client, "-H", docker_host, "import", "--change", 'CMD ["bash"]', archive, OWN),
            log=log,
            seconds=300,
        )


def _with_mmdebstrap(mmdebstrap: Path, archive: Path, log: Path) -> None:
    # Packages are unpacked into an archive that is thrown away when anything fails, so nothing is
    # gained by syncing every file: that is two thirds of the time.
    argv: list[str | Path] = [mmdebstrap, "--variant=minbase", "--dpkgopt=force-unsafe-io"]
    if _KEYRING.exists():
        argv.append(f"--keyring={_KEYRING}")
    argv += [_SUITE, archive]
    if mirror := os.environ.get("SVC_DEBIAN_MIRROR"):
        argv.append(mirror)
    env = {**os.environ, "TMPDIR": str(archive.parent), "LC_ALL": "C.UTF-8"}
    run_logged(argv, log=log, seconds=_BUILD_SECONDS, env=env)


def _with_debootstrap(root: Path, archive: Path, log: Path) -> None:
    argv: list[str | Path] = ["debootstrap", "--variant=minbase", _SUITE, root]
    if mirror := os.environ.get("SVC_DEBIAN_MIRROR"):
        argv.append(mirror)
    run_logged(argv, log=log, seconds=_BUILD_SECONDS)
    run_logged(
        ("tar", "-C", root, "--numeric-owner", "--one-file-system", "-cf", archive, "."),
        log=log,
        seconds=300,
    )


def _roomy() -> Path:
    """Memory, when it has room and allows programs and devices; otherwise the usual place."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of our own is made below it
    try:
        facts = os.statvfs(memory)
    except OSError:
        return Path(tempfile.gettempdir())
    unfit = facts.f_flag & (os.ST_NOEXEC | os.ST_NODEV | os.ST_NOSUID | os.ST_RDONLY)
    roomy = facts.f_bavail * facts.f_frsize >= _ROOM_NEEDED
    return memory if roomy and not unfit else Path(tempfile.gettempdir())
