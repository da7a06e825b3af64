"""The agent as a real process outside of a container, for the tests of `boot`.

The archive that images get is run by the system's Python. As root, user processes belong to
`nobody`, so the change of user is tested too; otherwise they belong to whoever runs the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runs.agent_archive import agent_archive
from tests.support.waiting import LONG_WAIT

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
USER = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
WAIT_SECONDS = LONG_WAIT


def step(run: str, *, name: str = "a step", cwd: str | None = None) -> dict[str, object]:
    """One setup or startup step for `sh`, as `boot.json` has it."""
    return {"name": name, "run": run, "shell": "sh", "workingDirectory": cwd}


def bash_step(run: str) -> dict[str, object]:
    """The same for `bash`."""
    return step(run) | {"shell": "bash"}


def command(run: str, *, cwd: str | None = None) -> dict[str, object]:
    """A foreground of kind `command`."""
    return {"kind": "command", "run": run, "shell": "sh", "workingDirectory": cwd}


RECORD: dict[str, object] = {
    "policy": "block",
    "input": "masked",
    "spoolBytes": 256 * 1024**2,
    "segmentBytes": 8 * 1024**2,
    "restart": True,
}

HARNESS = {"kind": "harness", "command": []}

_SETTLING = """
import sys
archive, seconds = sys.argv[1], float(sys.argv[2])
sys.path.insert(0, archive)
sys.argv = [archive, *sys.argv[3:]]
from agent.boot import sequence
sequence._SETTLE_SECONDS = seconds
from agent.__main__ import main
sys.exit(main())
"""
"""The agent, which waits for so long whether a foreground ends at once."""

UNTIL_GO = "while [ ! -e go ]; do sleep 0.01; done"
"""Shell text that waits until the test says `workspace.go()`."""


class Boot:
    """One running (or ended) `agent boot`."""

    def __init__(self, workspace: Workspace, process: subprocess.Popen[bytes]) -> None:
        self._workspace = workspace
        self.process = process
        self.pid = process.pid

    def settle(self) -> dict[str, Any]:
        """The status once the boot is ready, failed or stopped."""
        # A container's status command knows the last boot's file by the start time of PID 1.
        eventually(self._has_written)
        ended = self._workspace.agent("status", "--wait", str(WAIT_SECONDS))
        status: dict[str, Any] = json.loads(ended.stdout)
        return status

    def _has_written(self) -> bool:
        path = self._workspace.state / "status.json"
        return path.exists() and self._workspace.status()["process"]["pid"] == self.pid

    def wait(self) -> int:
        """The exit code of the agent, 128 + n for a signal as Docker shows it."""
        code = self.process.wait(WAIT_SECONDS)
        return code if code >= 0 else 128 - code

    def stop(self) -> int:
        """Ask PID 1 to stop, and wait for it."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    @property
    def output(self) -> bytes:
        """What the container's log would show."""
        return self._workspace.log.read_bytes()

    def children(self) -> list[tuple[int, str]]:
        """Process id and state (`Z` for a zombie) of every child."""
        found = []
        for pid in process_ids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.pid:
                    found.append((pid, fields[0]))
        return found


@functools.cache
def _compiled() -> Path:
    """What images hold beside the agent: its modules as byte code, made once for all workspaces."""
    folder = Path(tempfile.mkdtemp(prefix="svc-agent-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    archive = folder / "agent"
    archive.write_bytes(agent_archive())
    subprocess.run([PYTHON, "-IS", str(archive), "compile"], check=True)
    (compiled,) = folder.glob("agent.*")
    return compiled


class Workspace:
    """The folders of one workspace; boots it as often as a test likes."""

    def __init__(self, root: Path, *, compiled: bool = True) -> None:
        self.root = root
        self.home = root / "home"
        self.directory = root / "workspace" / "project"
        self.state = root / "state"
        self.config_path = root / "boot.json"
        self.log = root / "log"
        self.archive = root / "agent"
        self.run_id = str(uuid.uuid4())
        self.settle_seconds: float | None = None
        """How long a boot waits whether its foreground ends at once, if not as usual."""
        self._boots: list[subprocess.Popen[bytes]] = []
        self.home.mkdir()
        shutil.chown(self.home, USER)
        self.archive.write_bytes(agent_archive())
        self.archive.chmod(0o755)
        if compiled:
            (root / _compiled().name).symlink_to(_compiled())

    def config(self, **members: object) -> dict[str, Any]:
        """A valid `boot.json`; keyword arguments replace members."""
        config: dict[str, Any] = {
            "version": 1,
            "runId": self.run_id,
            "workspaceId": "workspace",
            "attemptId": "attempt",
            "user": USER,
            "home": str(self.home),
            "shell": "/bin/bash",
            "sudo": False,
            "workspaceRoot": str(self.root / "workspace"),
            "workingDirectory": str(self.directory),
            "env": {},
            "dotfiles": None,
            "setup": [],
            "startup": [],
            "foreground": HARNESS,
            "limits": {"stepSeconds": 300, "graceSeconds": 30, "tailBytes": 8192},
            "record": RECORD,
            "secrets": [],
        }
        return config | members

    def limits(self, **members: float) -> dict[str, float]:
        """The limits with some of them replaced."""
        defaults = {"stepSeconds": 300, "graceSeconds": 30, "tailBytes": 8192}
        return defaults | members

    def write_config(self, **members: object) -> None:
        """Write `boot.json` as the adapter does: root's (ours), mode 0600."""
        self.config_path.write_text(json.dumps(self.config(**members)))
        self.config_path.chmod(0o600)

    def boot(self, *, stdout: int | None = None, **members: object) -> Boot:
        """Start the agent with this configuration."""
        self.write_config(**members)
        return self.boot_as_configured(stdout=stdout)

    def boot_as_configured(
        self, *, stdout: int | None = None, env: dict[str, str] | None = None
    ) -> Boot:
        """Start the agent with whatever `boot.json` there is."""
        argv = [PYTHON, "-I", str(self.archive), "boot"]
        if self.settle_seconds is not None:
            argv[2:3] = ["-c", _SETTLING, str(self.archive), str(self.settle_seconds)]
        argv += ["--config", str(self.config_path), "--state-dir", str(self.state)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=subprocess.DEVNULL,
                env=os.environ if env is None else env,
            )
        self._boots.append(process)
        return Boot(self, process)

    def agent(self, subcommand: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another subcommand of the agent to its end."""
        argv = [PYTHON, "-I", str(self.archive), subcommand, *arguments]
        argv += ["--state-dir", str(self.state)]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    def status(self) -> dict[str, Any]:
        """The status file."""
        status: dict[str, Any] = json.loads((self.state / "status.json").read_bytes())
        return status

    def end(self) -> None:
        """Kill everything that belongs to this workspace."""
        deadline = time.monotonic() + WAIT_SECONDS
        while left := _agents(self) + self.processes():
            assert time.monotonic() < deadline, f"{left} cannot be killed"
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._boots:
                process.poll()
            time.sleep(0.01)
        for process in self._boots:
            process.wait()

    def processes(self) -> list[int]:
        """Every living user process of this workspace, found by its run id."""
        mark = f"SVC_RUN_ID={self.run_id}".encode()
        found = []
        for pid in process_ids():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def go(self) -> None:
        """Let whatever waits with UNTIL_GO go on."""
        (self.directory / "go").touch()

    def read(self, name: str) -> str:
        """A file in the working directory."""
        return (self.directory / name).read_text()


@contextlib.contextmanager
def workspace(*, compiled: bool = True) -> Iterator[Workspace]:
    """A workspace in a folder that every user may enter; nothing of it is left running."""
    # pytest's own temporary folders are closed to other users.
    root = Path(tempfile.mkdtemp(prefix="agent-"))
    root.chmod(0o755)
    made = Workspace(root, compiled=compiled)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(root)


def process_ids() -> list[int]:
    """Every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _agents(made: Workspace) -> list[int]:
    found = []
    for pid in process_ids():
        with contextlib.suppress(OSError):
            if str(made.archive).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def eventually(condition: Any, *, within: float = WAIT_SECONDS) -> None:
    """Wait for a condition that another process brings about."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
