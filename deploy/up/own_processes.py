"""Our own processes, kept running by supervisord from the virtual environment.

The table below is all there is to say about a process: its name, its command, and how long it may
take to finish its work when it is asked to stop.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.services.errors import StartError
from deploy.services.process import ProcessRecord, spawn_detached, tail, wait_until
from deploy.up.environment import settings_only
from deploy.up.layout import Layout
from deploy.up.secrets import write_private

_START_SECONDS = 20.0
_SUPERVISOR = Path(__file__).resolve().parents[1] / "supervisor.py"


@dataclass(frozen=True)
class Process:
    """One process of ours; `{bin}` in its command is the virtual environment's."""

    name: str
    command: str
    stop_seconds: int


PROCESSES: tuple[Process, ...] = (
    Process("api", "{bin}/gunicorn -c deploy/gunicorn.conf.py controlplane.wsgi", 40),
    Process("buildworker", "{bin}/python manage.py buildworker", 60),
    Process("runworker", "{bin}/python manage.py runworker", 20),
    # As long as systemd waits for builds: those on other machines are not cut short.
    Process("engineworkers", "{bin}/python manage.py engineworkers", 300),
    Process("sshgateway", "{bin}/python manage.py sshgateway", 30),
    Process("previewgateway", "{bin}/python manage.py previewgateway", 30),
    Process("egressproxy", "{bin}/python manage.py egressproxy", 10),
)


class OwnProcesses:
    """supervisord and what it keeps running. State lies below the layout's directories only."""

    def __init__(self, layout: Layout, processes: tuple[Process, ...] = PROCESSES) -> None:
        self.layout = layout
        self._processes = processes

    @property
    def running(self) -> bool:
        record = self._record()
        return record is not None and record.alive

    @property
    def environ(self) -> dict[str, str]:
        """The environment that they run with; empty when nothing of ours runs."""
        record = self._record()
        return record.environ() if record is not None else {}

    def is_current(self, environ: Mapping[str, str]) -> bool:
        """True when they run with these settings and with the code as it is now."""
        try:
            started_with = self._fingerprint_path.read_text()
        except OSError:
            return False
        return self.running and started_with == self.fingerprint(environ)

    def start(self, environ: Mapping[str, str]) -> None:
        """Start supervisord with everything in the table. Raises StartError."""
        self._kill_leftovers()
        write_private(self._configuration_path, self.configuration())
        log = self.layout.log / "supervisord.log"
        record = spawn_detached(
            [
                # -P: the script's folder is no place to import from.
                *(str(self.layout.venv / "bin/python"), "-P", str(_SUPERVISOR)),
                "--nodaemon",
                f"--configuration={self._configuration_path}",
            ],
            env=environ,
            directory=self.layout.checkout,
            log=log,
        )
        record.save(self._record_path)
        wait_until(lambda: not record.alive or self.states() is not None, _START_SECONDS, every=0.1)
        if not record.alive or self.states() is None:
            self._kill_leftovers()
            raise StartError(f"supervisord did not start. The end of {log}:\n{tail(log)}")
        self._fingerprint_path.write_text(self.fingerprint(environ))

    def stop(self) -> bool:
        """Ask everything to finish its work and wait for it. False when nothing ran."""
        record = self._record()
        if record is None or not record.alive:
            self._kill_leftovers()
            return False
        record.signal(signal.SIGTERM)
        # supervisord waits for each process as long as the table says, and then kills it.
        record.wait_gone(sum(process.stop_seconds for process in self._processes) + 10)
        self._kill_leftovers()
        self._fingerprint_path.unlink(missing_ok=True)
        return True

    def states(self) -> dict[str, str] | None:
        """Name and supervisord's word for the state of each process; None when it is not there."""
        if not self._socket.exists():
            return None
        done = subprocess.run(
            [
                *(self.layout.venv / "bin/supervisorctl", "-c", self._configuration_path),
                "status",
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        lines = [line.split() for line in done.stdout.splitlines()]
        states = {words[0]: words[1] for words in lines if len(words) > 1}
        known = {process.name for process in self._processes}
        return states if known <= set(states) else None

    def log_of(self, name: str) -> Path:
        return self.layout.log / f"{name}.log"

    def configuration(self) -> str:
        """The text of supervisord's configuration; it holds no secret."""
        # Without a user of its own, supervisord warns about running as root.
        root = ["user=root"] if os.geteuid() == 0 else []
        sections = [
            ("unix_http_server", [f"file={_literal(self._socket)}", "chmod=0600"]),
            (
                "supervisord",
                [
                    "logfile=/dev/null",
                    "logfile_maxbytes=0",
                    f"pidfile={_literal(self.layout.sockets / 'supervisord.pid')}",
                    *root,
                ],
            ),
            (
                "rpcinterface:supervisor",
                ["supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface"],
            ),
            ("supervisorctl", [f"serverurl=unix://{_literal(self._socket)}"]),
        ]
        for process in self._processes:
            bin_directory = shlex.quote(str(self.layout.venv / "bin"))
            command = process.command.format(bin=bin_directory)
            sections.append(
                (
                    f"program:{process.name}",
                    [
                        f"command={_literal(command)}",
                        f"directory={_literal(self.layout.checkout)}",
                        "autorestart=true",
                        "startsecs=2",
                        "startretries=100",  # each try waits a second longer than the last
                        "stopsignal=TERM",
                        f"stopwaitsecs={process.stop_seconds}",
                        "killasgroup=true",
                        "redirect_stderr=true",
                        f"stdout_logfile={_literal(self.log_of(process.name))}",
                        "stdout_logfile_maxbytes=10MB",
                        "stdout_logfile_backups=3",
                    ],
                )
            )
        return "\n".join(
            f"[{name}]\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections
        )

    def fingerprint(self, environ: Mapping[str, str]) -> str:
        """Changes with every setting, every line of code and the installed packages."""
        digest = hashlib.sha256(self.configuration().encode())
        for name, value in settings_only(environ).items():
            digest.update(f"{name}={value}\0".encode())
        for path in self._sources():
            facts = path.stat()
            digest.update(f"{path}\0{facts.st_mtime_ns}\0{facts.st_size}\0".encode())
        return digest.hexdigest()

    def _sources(self) -> list[Path]:
        """Every file whose change makes the running processes stale."""
        apps = [path for path in self.layout.checkout.iterdir() if path.is_dir()]
        code = [
            path
            for app in apps
            if not app.name.startswith(".") and app.name != "tests"
            for path in app.rglob("*.py")
        ]
        return sorted([*code, *self.layout.venv.glob(".*.sha256")])

    @property
    def _socket(self) -> Path:
        return self.layout.sockets / "supervisor.sock"

    @property
    def _configuration_path(self) -> Path:
        return self.layout.data / "supervisord.conf"

    @property
    def _fingerprint_path(self) -> Path:
        return self.layout.data / "started-with"

    @property
    def _record_path(self) -> Path:
        return self.layout.data / "supervisord.json"

    def _record(self) -> ProcessRecord | None:
        return ProcessRecord.load(self._record_path)

    def _kill_leftovers(self) -> None:
        """End what a supervisord that was killed left behind; its successor needs the ports."""
        record = self._record()
        if record is not None:
            record.kill_session()
            record.wait_gone(10)
        self._socket.unlink(missing_ok=True)


def _literal(value: str | Path) -> str:
    """A value in which supervisord expands nothing."""
    return str(value).replace("%", "%%")
