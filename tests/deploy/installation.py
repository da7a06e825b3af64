"""An installation in a folder of its own, as deploy/install.sh makes and removes it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from uuid import uuid4

from tests.stack.free_ports import free_ports
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import DOCKER_HOST

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = CHECKOUT / "deploy" / "install.sh"


@dataclass
class Installation:
    """A folder with an `.env`, and what install.sh says about it."""

    home: Path

    @property
    def env(self) -> Path:
        return self.home / ".env"

    @property
    def settings(self) -> dict[str, str]:
        """What `.env` says; the last line of a name counts."""
        lines = self.env.read_text().splitlines()
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name: value for name, _, value in pairs}

    def run(
        self, *arguments: str, seconds: float = LONG_WAIT, environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Call install.sh; `compose` takes everything that follows it."""
        own = ["--home", str(self.home)]
        return subprocess.run(
            ["nice", "-n", "10", "bash", SCRIPT, *own, *arguments],
            env={"PATH": os.environ["PATH"], "DOCKER_HOST": DOCKER_HOST, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start install.sh in a process group of its own."""
        return subprocess.Popen(
            ["bash", SCRIPT, "--home", self.home, *arguments],
            env={"PATH": os.environ["PATH"], "DOCKER_HOST": DOCKER_HOST},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(
        self, function: str, *, seconds: float = LONG_WAIT
    ) -> subprocess.CompletedProcess[str]:
        """Call one function of install.sh, with everything before it done."""
        folder = SCRIPT.parent
        parts = [
            f". {quote(f'{folder}/install/{name}.sh')}"
            for name in ("base", "checks", "images", "lifecycle")
        ]
        head = SCRIPT.read_text().splitlines()
        constants = [line for line in head if line.startswith("readonly ")]
        script = "\n".join(
            [
                "set -euo pipefail; umask 077",
                f"here={quote(str(folder))} checkout={quote(str(CHECKOUT))}",
                f"home={quote(str(self.home))} min_free_mb=1 yes=yes",
                "env_file=$home/.env marker=$home/.upgrade",
                *constants,
                *parts,
                function,
            ]
        )
        return subprocess.run(
            ["bash", "-c", script],
            env={"PATH": os.environ["PATH"], "DOCKER_HOST": DOCKER_HOST},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


def made_installation(home: Path, **settings: str) -> Installation:
    """A folder whose `.env` names an installation and ports that nobody uses."""
    ports = free_ports(6)
    given = {
        "SVC_INSTANCE_ID": f"svc-{uuid4().hex[:8]}",
        "SVC_API_PORT": str(ports[0]),
        "SVC_SSH_PORT": str(ports[1]),
        "SVC_REGISTRY_PORT": str(ports[2]),
        "SVC_WEB_PORT": str(ports[3]),
        "SVC_PREVIEW_PORT": str(ports[4]),
        "SVC_EGRESS_PORT": str(ports[5]),
        **settings,
    }
    installation = Installation(home)
    # As people leave it: without an end of the last line.
    text = "\n".join(f"{name}={value}" for name, value in given.items())
    installation.env.write_text(text)
    installation.env.chmod(0o600)
    return installation


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """Something else that listens on a port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener
