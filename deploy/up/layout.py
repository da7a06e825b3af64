"""Where everything of one checkout lies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.services.account import first_closed_parent

# The address of a Unix socket is at most 107 bytes; the engine puts sockets of its own some 40
# bytes below its directory.
_LONGEST_ROOT = 60


@dataclass(frozen=True)
class Layout:
    """The directories of one checkout. Nothing outside of them is ever written."""

    checkout: Path
    data: Path
    services: Path
    moved_because: str = ""
    """Why the services' data does not lie below `data`; empty when it does."""

    @classmethod
    def of(
        cls, checkout: Path, environ: Mapping[str, str], *, as_root: bool | None = None
    ) -> Layout:
        """Decide once where the services' data lies, and keep to it afterwards.

        What root starts does not run as root, so every directory above their data must let
        others through; a checkout below a closed home directory cannot hold it.
        """
        checkout = checkout.resolve()
        data = Path(environ.get("SVC_DATA_DIR") or checkout / ".data").absolute()
        pointer = data / "services-root"
        if pointer.exists():
            services = Path(pointer.read_text().strip())
            return cls(checkout, data, services, f"kept from before, as {pointer} says")
        services = data / "services"
        if services.exists() or not (os.geteuid() == 0 if as_root is None else as_root):
            return cls(checkout, data, services)
        data.mkdir(parents=True, exist_ok=True)
        closed = first_closed_parent(data)
        reason = f"{closed} is not accessible to the accounts they run as" if closed else ""
        if len(os.fsencode(services)) > _LONGEST_ROOT:
            reason = reason or "the path is too long for the sockets"
        if not reason:
            return cls(checkout, data, services)
        services = Path("/var/lib") / f"svc-{_short_hash(data)}"
        pointer.write_text(f"{services}\n")
        return cls(checkout, data, services, reason)

    @property
    def secrets(self) -> Path:
        """The generated secrets and everything the operator adds: KEY=value lines, mode 0600."""
        return self.data / ".env"

    @property
    def environment(self) -> Path:
        """What the last set-up found out: KEY=value lines, mode 0600, rewritten each time."""
        return self.data / "environment"

    @property
    def log(self) -> Path:
        return self.data / "log"

    @property
    def setup_log(self) -> Path:
        """What package managers and other programs of the set-up printed."""
        return self.log / "setup.log"

    @property
    def ports(self) -> Path:
        return self.data / "ports.json"

    @property
    def venv(self) -> Path:
        return self.checkout / ".venv"

    @property
    def sockets(self) -> Path:
        """A directory of our own with a path short enough for Unix sockets."""
        directory = self.data / "run"
        if len(os.fsencode(directory)) <= _LONGEST_ROOT + 20:
            return directory
        return Path("/tmp") / f"svc-{os.geteuid()}-{_short_hash(self.data)}"  # noqa: S108 - 0700

    def create(self) -> None:
        """Create our own directories; open to pass through, because services look below them."""
        for directory in (self.data, self.log):
            directory.mkdir(parents=True, exist_ok=True)
        self.data.chmod(0o755)
        self.sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.sockets.stat().st_uid != os.geteuid():
            raise PermissionError(f"{self.sockets} belongs to another user")


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:10]
