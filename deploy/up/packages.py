"""What is missing on this machine, and its installation from the Debian or Ubuntu archive."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.services.errors import MissingPartsError, SetupError
from deploy.services.private import find_program
from deploy.up.logged import run_logged
from deploy.up.progress import Progress

_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = """#!/bin/sh
# Written by the set-up of a control plane while it installs packages, removed right after.
exit 101
"""


@dataclass(frozen=True)
class Missing:
    """One thing that is missing: its name, the packages that bring it, what else would do."""

    name: str
    packages: tuple[str, ...]
    instead: str = ""


def missing_programs(*, base_image_tool: bool) -> list[Missing]:
    """The programs the set-up itself needs that are not installed."""
    missing = []
    if find_program("git") is None:
        missing.append(Missing("git", ("git",)))
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        version = ".".join(platform.python_version_tuple()[:2])
        missing.append(Missing("Python's venv module", (f"python{version}-venv",)))
    if base_image_tool and find_program("mmdebstrap", "debootstrap") is None:
        packages: tuple[str, ...] = ("mmdebstrap",)
        if _os_release().get("ID") != "debian":
            packages += ("debian-archive-keyring",)
        instead = "or set SVC_BASE_IMAGE_DEBIAN to an image the engine can pull"
        missing.append(Missing("mmdebstrap", packages, instead))
    return missing


def missing_browser() -> list[Missing]:
    """The headless browser in which the tests look at the pages, unless one is installed."""
    if find_program("chromium", "chromium-browser", "google-chrome") is not None:
        return []
    return [Missing("Chromium", ("chromium", "fonts-dejavu-core"))]


def missing_compose() -> list[Missing]:
    """Docker Compose, with which the tests install the whole service."""
    plugins = ("/usr/libexec", "/usr/lib", "/usr/local/lib")
    if find_program("docker-compose") is not None or any(
        (Path(folder) / "docker/cli-plugins/docker-compose").exists() for folder in plugins
    ):
        return []
    return [Missing("Docker Compose", ("docker-compose",))]


def missing_npm() -> list[Missing]:
    """npm, which installs the programs of `deploy/node`; Debian's brings Node.js with it."""
    return [] if find_program("npm") is not None else [Missing("npm", ("npm",))]


_SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")
_OPENID_MODULE = Path("/usr/lib/apache2/modules/mod_auth_openidc.so")


def missing_ssh_clients(*, test: bool) -> list[Missing]:
    """The programs with which the demo and the tests enter workspaces."""
    missing = []
    if any(find_program(name) is None for name in ("ssh", "scp", "sftp", "ssh-keygen")):
        missing.append(Missing("OpenSSH client", ("openssh-client",)))
    if test and find_program("rsync") is None:
        missing.append(Missing("rsync", ("rsync",)))
    if test and find_program("strace") is None:
        missing.append(Missing("strace", ("strace",)))
    if test:
        missing += missing_npm()  # installs the harnesses whose prompts are tested
    if test and find_program("nginx") is None:
        missing.append(Missing("nginx", ("nginx-light",)))  # of the page about TLS
    if test and find_program("haproxy") is None:
        missing.append(Missing("haproxy", ("haproxy",)))  # in front of two of each
    if test and not _OPENID_MODULE.exists() and _is_debian_like():
        # Of the same page. Without the package apache2, so that no server is started.
        missing.append(Missing("mod_auth_openidc", ("apache2-bin", "libapache2-mod-auth-openidc")))
    if test:
        missing += _missing_for_the_pages()
    if test and not _SFTP_SERVER.exists() and _is_debian_like():
        missing.append(Missing("sftp-server", ("openssh-sftp-server",)))
    return missing


def _missing_for_the_pages() -> list[Missing]:
    """What the commands of the documentation take, which the tests type."""
    wanted = {"curl": "curl", "jq": "jq", "pg_dump": "postgresql-client"}
    return [
        Missing(name, (package,)) for name, package in wanted.items() if find_program(name) is None
    ]


def can_install() -> bool:
    """True for root on Debian, Ubuntu and what is made from them."""
    return os.geteuid() == 0 and _is_debian_like() and shutil.which("apt-get") is not None


def refuse(missing: Iterable[Missing]) -> MissingPartsError:
    """The one message that names everything missing and what to do about it."""
    wanted = list(missing)
    lines = ["The following is missing:"]
    for part in wanted:
        remedy = f"apt packages: {' '.join(part.packages)}" if part.packages else ""
        hints = "; ".join(hint for hint in (remedy, part.instead) if hint)
        lines.append(f"  - {part.name}" + (f"  ({hints})" if hints else ""))
    packages = " ".join(dict.fromkeys(name for part in wanted for name in part.packages))
    if not packages:
        lines.append("Then run this command again.")
    elif _is_debian_like():
        lines.append("Run this command again as root, or have someone with root access run:")
        lines.append(f"  apt-get update && apt-get install --no-install-recommends {packages}")
    else:
        lines.append(
            "Packages are installed only by root on Debian and Ubuntu; install these yourself, or "
            "set the addresses of services that run elsewhere (deploy/README.md)."
        )
    return MissingPartsError("\n".join(lines))


def install(missing: Iterable[Missing], *, log: Path, progress: Progress) -> None:
    """Install everything at once. No service of the machine is started or configured by it."""
    packages = list(dict.fromkeys(name for part in missing for name in part.packages))
    env = {
        **os.environ,
        "DEBIAN_FRONTEND": "noninteractive",
        "NEEDRESTART_MODE": "l",  # Ubuntu would otherwise restart other people's services
        "LC_ALL": "C.UTF-8",
    }
    with progress.step("Debian packages") as step:
        step.now("reading the package index")
        run_logged(("apt-get", "update", "-q"), log=log, seconds=300, env=env)
        packages += [name for name in _companions(packages) if _available(name, log)]
        step.now(f"installing {' '.join(packages)}")
        with _no_service_starts():
            run_logged(
                (
                    *("apt-get", "install", "-y", "-q", "--no-install-recommends"),
                    *("-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0", *packages),
                ),
                log=log,
                seconds=1800,
                env=env,
            )
        step.done(f"installed {' '.join(packages)}")


def _companions(packages: list[str]) -> list[str]:
    """Newer releases ship the client and BuildKit's plugin apart from the engine."""
    return ["docker-cli", "docker-buildx"] if "docker.io" in packages else []


def _available(package: str, log: Path) -> bool:
    try:
        run_logged(("apt-cache", "show", "-q", package), log=log, seconds=60)
    except SetupError:
        return False
    return True


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep the packages from starting services on the customary ports; ours run privately.

    The machine's own policy, when it has one, stays in force and untouched.
    """
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(_POLICY_TEXT)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


def _is_debian_like() -> bool:
    release = _os_release()
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    return bool(family & {"debian", "ubuntu"})


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
