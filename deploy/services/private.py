"""A server of our own: its files below one directory, started detached, stopped without loss.

    absent --start()--> running --stop()--> stopped --start()--> running
                           |                                        ^
                           +------- kill(), a crash, a reboot ------+

Nothing is kept in memory: any later process may construct the same object on the same directory and
stop, kill or restart the server.
"""

from __future__ import annotations

import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from deploy.services.account import Account
from deploy.services.errors import StartError
from deploy.services.ports import PortBook, is_free
from deploy.services.process import ProcessRecord, spawn_detached, tail, wait_until

_PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def find_program(*candidates: str) -> Path | None:
    """The first of these programs that exists on PATH or in the system's own folders."""
    for candidate in candidates:
        found = shutil.which(candidate) or shutil.which(candidate, path=_PLAIN_PATH)
        if found is not None:
            return Path(found)
    return None


class PrivateService(ABC):
    """One server process below `root`; subclasses say how it is prepared, run and recognised."""

    name: ClassVar[str]
    accounts: ClassVar[tuple[str, ...]] = ()
    start_seconds: ClassVar[float] = 30.0
    stop_seconds: ClassVar[float] = 30.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, root: Path, port: int | None = None) -> None:
        """`root` is created at the first start; without a `port` a free one is chosen and kept."""
        self.root = root.absolute()
        self._wanted_port = port
        self._book = PortBook(self.root / "ports.json")

    # What a subclass says about its server.

    @abstractmethod
    def prepare(self) -> None:
        """Write what the server needs to start: its data directory and configuration."""

    @abstractmethod
    def argv(self) -> list[str]:
        """The server in the foreground, run as its account."""

    @abstractmethod
    def answers(self) -> bool:
        """True when the server does its work, not only when its port is open."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, str]:
        """What the control plane's processes must be told; complete once the server runs."""

    def environment(self) -> Mapping[str, str]:
        """The whole environment of the server."""
        return {"PATH": _PLAIN_PATH, "LANG": "C.UTF-8", "HOME": str(self.root)}

    def after_start(self) -> None:  # noqa: B027 - most servers need nothing more
        """Bring the running server to what the control plane expects of it."""

    def after_stop(self) -> None:  # noqa: B027 - most servers leave nothing behind
        """Remove what the server leaves running."""

    # What everyone may ask of it.

    @property
    def account(self) -> Account:
        return Account.for_service(*self.accounts)

    @property
    def port(self) -> int:
        """The port the server listens on; chosen on first use."""
        self._make_root()
        return self._book.choose("port", self._wanted_port)

    @property
    def log(self) -> Path:
        """Where the server's output goes."""
        return self.root / "server.log"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        record = self._record()
        return record.pid if record is not None and record.alive else None

    @property
    def running(self) -> bool:
        """True while the process we started lives, whether it answers or not."""
        return self.pid is not None

    @property
    def data_exists(self) -> bool:
        """True once the server was started here: its data must be kept and used."""
        return self._record_path.exists()

    def start(self) -> bool:
        """Start the server and wait until it answers. False when it ran already.

        Raises StartError, with the end of the log, when it does not answer in time.
        """
        if self.running and wait_until(self.answers, self.start_seconds):
            return False
        self.stop()
        self._make_root()
        self._settle_ports()
        self.prepare()
        deadline = time.monotonic() + self.start_seconds
        # More than one try: after a kill -9 the names, ports and lock files of the dead server may
        # stay taken until its last child is gone and its zombie is reaped.
        while not self._start_once(deadline):
            if time.monotonic() >= deadline:
                self.kill()
                raise StartError(
                    f"{self.name} did not start within {self.start_seconds:.0f} s. "
                    f"The end of {self.log}:\n{tail(self.log)}"
                )
            time.sleep(0.2)
        self.after_start()
        return True

    def stop(self) -> bool:
        """Stop the server in good order and wait for it. False when it did not run."""
        record = self._record()
        if record is None or not record.alive:
            self.after_stop()
            return False
        record.signal(self.stop_signal)
        if not record.wait_gone(self.stop_seconds):
            self.kill()
        self.after_stop()
        return True

    def kill(self) -> None:
        """SIGKILL the server and its children, and wait until it is dead."""
        record = self._record()
        if record is not None:
            record.kill_session()
            record.wait_gone(10)

    def restart(self) -> None:
        """Stop in good order, then start again."""
        self.stop()
        self.start()

    # How it is done.

    @property
    def _record_path(self) -> Path:
        return self.root / "process.json"

    def _record(self) -> ProcessRecord | None:
        return ProcessRecord.load(self._record_path)

    def _make_root(self) -> None:
        # Ours, but open to pass through: the server's own directories below it are closed.
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o755)

    def _settle_ports(self) -> None:
        """Move to another port when a stranger has taken ours; never from one asked for."""
        port = self.port
        if not wait_until(lambda: is_free(port), 3) and self._wanted_port is None:
            self._book.replace("port")

    def _start_once(self, deadline: float) -> bool:
        record = spawn_detached(
            self.argv(), env=self.environment(), directory=self.root, log=self.log
        )
        record.save(self._record_path)
        wait_until(
            lambda: not record.alive or self.answers(), max(0.0, deadline - time.monotonic())
        )
        return record.alive and self.answers()
