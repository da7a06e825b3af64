"""Running one step to its end, with a time limit, and saying in one sentence why it failed."""

from __future__ import annotations

import signal
import time
from typing import Dict, NamedTuple, Optional, Sequence

from ..config import Limits, Step
from ..masking.masker import Masker
from ..process.program import Account, Exit, StartError
from ..process.signals import STOPPING, name_of
from ..record.tail import Tail
from ..status_file import StepStatus
from .boot_record import Ending, ending_of, start_failed
from .supervisor import Running, Supervisor

_SHELLS = {"sh": ("/bin/sh", "-c"), "bash": ("/bin/bash", "-lc")}


class Stopped(Exception):
    """The operator asked PID 1 to stop while no foreground was there to be told."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {name_of(number)}")
        self.number = number


class Command(NamedTuple):
    """A step as a process: its place in the boot, its argv and where it runs."""

    kind: str
    position: int
    name: str
    argv: Sequence[str]
    cwd: str

    def status(self, ended: Optional[Exit] = None, timed_out: bool = False) -> StepStatus:
        """How this step appears in the status file."""
        return StepStatus(
            name=self.name,
            kind=self.kind,
            position=self.position,
            exit_code=ended.code if ended else None,
            signal=ended.signal_name if ended else None,
            timed_out=timed_out,
        )


class StepFailed(Exception):
    """A step did not succeed; carries what the status file says about it."""

    def __init__(self, reason: str, step: StepStatus, ending: Ending, tail: str = "") -> None:
        subject = (
            "the foreground" if step.kind == "foreground" else f'{step.kind} step "{step.name}"'
        )
        super().__init__(f"{subject} {reason}")
        self.step = step
        self.ending = ending
        self.tail = tail


class Runner:
    """Runs commands as the workspace's user, in its environment and within its limits."""

    def __init__(
        self,
        supervisor: Supervisor,
        account: Account,
        env: Dict[str, str],
        limits: Limits,
        masker: Masker,
        secrets: Sequence[bytes],
    ) -> None:
        self.env = env
        """What the commands see that are started from now on."""
        self._supervisor = supervisor
        self._account = account
        self._masker = masker
        self._limits = limits
        self._secrets = secrets

    def start(self, command: Command) -> Running:
        """Start a command without waiting for it; raises StepFailed."""
        try:
            return self._supervisor.start(
                command.argv,
                name=command.name,
                account=self._account,
                cwd=command.cwd,
                env=self.env,
                tail=Tail(self._limits.tail_bytes, self._secrets, self._masker),
            )
        except StartError as error:
            ending = start_failed(error.code)
            raise StepFailed(f"could not start: {error}", command.status(), ending) from None

    def run(self, command: Command) -> None:
        """Run a command until its leader exits; raises StepFailed or Stopped.

        What it leaves in the background stays alive and keeps its output; only a step that ran out
        of time takes its whole process group with it.
        """
        running = self.start(command)
        timed_out = not self._wait(running, time.monotonic() + self._limits.step_seconds)
        if timed_out:
            self._end_group(running)
        ended = running.child.exit
        status = command.status(ended, timed_out)
        ending = ending_of(ended, timed_out=timed_out)
        if timed_out:
            limit = f"ran longer than {self._limits.step_seconds:g} seconds"
            raise StepFailed(f"{limit} and was stopped: it {ended}", status, ending, running.tail)
        if ended is None or ended.status != 0:
            raise StepFailed(str(ended), status, ending, running.tail)

    def _wait(self, running: Running, deadline: float) -> bool:
        while running.child.exit is None:
            if time.monotonic() >= deadline:
                return False
            for number in self._supervisor.turn(deadline):
                if number in STOPPING:
                    raise Stopped(number)
        return True

    def _end_group(self, running: Running) -> None:
        child = running.child
        running.timed_out = True
        self._supervisor.signal_group(running, signal.SIGTERM, "timeout")
        deadline = time.monotonic() + self._limits.grace_seconds
        child.signal_group(signal.SIGCONT)
        while child.group_is_alive() and time.monotonic() < deadline:
            self._supervisor.turn(deadline)
        if child.group_is_alive():
            self._supervisor.signal_group(running, signal.SIGKILL, "timeout")
        while child.exit is None:
            self._supervisor.turn()


def command_of(step: Step, kind: str, position: int, default_directory: str) -> Command:
    """The process of a configured step; a relative directory counts from the workspace's own."""
    directory = default_directory
    if step.working_directory is not None:
        directory = f"{default_directory.rstrip('/')}/{step.working_directory}"
        if step.working_directory.startswith("/"):
            directory = step.working_directory
    return Command(kind, position, step.name, (*_SHELLS[step.shell], step.run), directory)
