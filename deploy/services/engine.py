"""The Docker Engine: a private one, the one that answers already, and the client to use with it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from deploy.services.errors import MissingPartsError, SetupError
from deploy.services.private import PrivateService, find_program
from deploy.services.process import running_commands

MINIMUM_API = (1, 41)  # Docker 20.10
_OCTAL = re.compile(r"\\([0-7]{3})")  # how /proc/mounts writes a space
_BUILDKIT_NEEDS_BUILDX = 23


class PrivateEngine(PrivateService):
    """A dockerd of our own behind a Unix socket; needs root, and to be the only one that has
    `networking`: two engines would fight over one bridge and one set of firewall rules."""

    name: ClassVar[str] = "Docker Engine"
    start_seconds: ClassVar[float] = 60.0
    stop_seconds: ClassVar[float] = 60.0

    def __init__(self, root: Path, *, networking: bool = True) -> None:
        super().__init__(root)
        self._networking = networking

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def settings(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.url}

    @property
    def _socket(self) -> Path:
        return self.root / "docker.sock"

    @property
    def data_exists(self) -> bool:
        return (self.root / "data").exists()

    def prepare(self) -> None:
        self.account.make_directory(self.root / "data", 0o710)
        # Not the machine's own configuration file, which belongs to the machine's own engine.
        self.account.write(self.root / "daemon.json", "{}\n")
        # The pid files of an engine that died may name living strangers by now, or zombies, for
        # which the next engine would wait a quarter of a minute.
        (self.root / "docker.pid").unlink(missing_ok=True)
        containerd = self.root / "exec" / "containerd" / "containerd.pid"
        if containerd.exists() and not _runs_containerd(containerd.read_text().strip()):
            containerd.unlink()

    def argv(self) -> list[str]:
        server = find_program("dockerd")
        if server is None or os.geteuid() != 0:
            raise MissingPartsError("A Docker Engine of our own needs dockerd and root.")
        argv = [
            str(server),
            f"--config-file={self.root / 'daemon.json'}",
            f"--host={self.url}",
            f"--data-root={self.root / 'data'}",
            f"--exec-root={self.root / 'exec'}",
            f"--pidfile={self.root / 'docker.pid'}",
        ]
        if not self._networking:
            # In a network namespace of its own: an engine told `--bridge=none` removes docker0,
            # which is the bridge of the machine's own engine.
            argv = ["unshare", "--net", "--", *argv, "--bridge=none", "--iptables=false"]
        return argv

    def answers(self) -> bool:
        return api_version(self.url) is not None

    def after_stop(self) -> None:
        # The engine mounts its data directory over itself, once more after each kill.
        unmount(mounts_below(self.root / "data"))

    def _settle_ports(self) -> None:
        """It listens on a socket only."""


def mounts_below(root: Path) -> list[Path]:
    """Every mount at or below a directory, the innermost and latest first."""
    lines = Path("/proc/mounts").read_text().splitlines()
    points = [
        Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), each.split()[1])) for each in lines
    ]
    return [point for point in reversed(points) if point.is_relative_to(root)]


def unmount(points: Iterable[Path]) -> None:
    """Take mounts off; one that is in use goes when its last user does."""
    for point in points:
        subprocess.run(["umount", "-l", point], capture_output=True, timeout=60, check=False)


def _runs_containerd(pid: str) -> bool:
    return any(str(running) == pid for running, _ in running_commands("containerd"))


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def api_version(docker_host: str, timeout: float = 3.0) -> tuple[int, ...] | None:
    """The API version of the engine that answers there, or None. Knows unix:// and plain tcp://."""
    parts = urlsplit(docker_host)
    connection: http.client.HTTPConnection
    if parts.scheme == "unix":
        connection = _UnixConnection(parts.path, timeout)
    elif parts.scheme in {"tcp", "http"} and parts.hostname:
        connection = http.client.HTTPConnection(parts.hostname, parts.port or 2375, timeout=timeout)
    else:
        return None
    with contextlib.closing(connection):
        try:
            connection.request("GET", "/_ping")
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            return None
        version = answer.getheader("Api-Version", "")
        if answer.status != 200 or not version:
            return None
        return tuple(int(part) for part in version.split(".") if part.isdigit())


def _sockets() -> list[str]:
    """Where an engine may listen: the customary sockets, then those of every running dockerd."""
    candidates = ["unix:///var/run/docker.sock"]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        candidates.append(f"unix://{runtime}/docker.sock")
    for _, argv in running_commands("dockerd"):
        for position, word in enumerate(argv):
            name, _, value = word.partition("=")
            if name in {"-H", "--host"}:
                candidates.append(value or next(iter(argv[position + 1 : position + 2]), ""))
    return [candidate for candidate in candidates if candidate.startswith("unix:///")]


def found_host(candidates: Sequence[str] | None = None) -> str | None:
    """DOCKER_HOST of an engine that answers us and is recent enough, else None."""
    for candidate in _sockets() if candidates is None else candidates:
        version = api_version(candidate)
        if version is not None and version >= MINIMUM_API:
            return candidate
    return None


def runs_elsewhere(own_pid: int | None) -> bool:
    """True when a dockerd other than ours is alive on this machine."""
    return any(pid != own_pid for pid, _ in running_commands("dockerd"))


def refused_socket() -> str | None:
    """A customary socket that exists but that this account may not open, for the error message."""
    path = Path("/var/run/docker.sock")
    try:
        exists = path.is_socket()
    except OSError:
        return None
    return str(path) if exists and not os.access(path, os.R_OK | os.W_OK) else None


def choose_client(docker_host: str, environ: Mapping[str, str]) -> str:
    """The Docker client to use: one that talks to this engine, with BuildKit if there is any.

    A client before 23.0 has BuildKit built in; a newer one needs the buildx plugin. Without either
    the classic builder still works. DOCKER_CLI, when set, is taken as it is.
    """
    if environ.get("DOCKER_CLI"):
        return environ["DOCKER_CLI"]
    candidates = [str(path) for path in _clients()]
    answering = [client for client in candidates if _talks(client, docker_host)]
    for client in answering:
        if _has_buildkit(client):
            return client
    if answering:
        return answering[0]
    if candidates:
        raise SetupError(
            f"None of these Docker clients can talk to the engine at {docker_host}: "
            f"{', '.join(candidates)}. Install a newer one or set DOCKER_CLI."
        )
    raise MissingPartsError("The Docker client (`docker`) is missing.")


def _clients() -> list[Path]:
    """Every `docker` program on PATH and in the system's folders, in that order, once each."""
    directories = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/bin", "/usr/bin"]
    found: dict[Path, None] = {}
    for directory in directories:
        program = Path(directory or ".") / "docker"
        if os.access(program, os.X_OK) and program.is_file():
            found[program.absolute()] = None
    return list(found)


def _ask(*argv: str) -> str | None:
    """What the program prints, or None when it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _talks(client: str, docker_host: str) -> bool:
    return bool(_ask(client, "-H", docker_host, "version", "--format", "{{.Server.Version}}"))


def _has_buildkit(client: str) -> bool:
    version = _ask(client, "--version") or ""
    words = version.replace(",", " ").split()
    major = next((word.split(".")[0] for word in words if word[:1].isdigit()), "")
    if major.isdigit() and int(major) < _BUILDKIT_NEEDS_BUILDX:
        return True
    return _ask(client, "buildx", "version") is not None
