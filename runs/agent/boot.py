"""`agent boot`: PID 1 of a workspace, from an empty container to `ready`, and until its end.

Phases: dotfiles (first boot only), setup (each step once per container), startup (each boot), then
ready while the foreground runs. A boot that fails says so in the status file first, then ends
every process and exits 70. A foreground that ends takes the workspace with it, and its exit status
becomes the container's; a stop that meets no foreground exits with 128 + the signal's number.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import Optional, Sequence

from . import reaper
from .config import Config, ConfigError, Dotfiles, Step, load
from .environment import account_of, environment_of, make_directory
from .markers import DOTFILES_DONE, SETUP_DONE, Markers, setup_step_done
from .process import can_execute
from .signals import STOPPING, name_of
from .status import StatusFile, StepStatus
from .steps import Command, Runner, StepFailed, Stopped, command_of
from .supervisor import Running, Supervisor
from .tail import bounded_text, mask

EXIT_FAILED = 70

# A command that cannot work (a typo, a missing library) ends within this time and is never called
# ready.
_SETTLE_SECONDS = 0.1
_DEFAULT_GRACE_SECONDS = 10.0
_MESSAGE_BYTES = 4096
_DEFAULT_BOOTSTRAP = "if [ -f ./install.sh ] && [ -x ./install.sh ]; then exec ./install.sh; fi"


def boot(config_path: str, state_directory: str) -> int:
    """Boot the workspace and stay until it ends; returns the exit code of the container."""
    os.umask(0o022)
    try:
        os.makedirs(state_directory, mode=0o755, exist_ok=True)
    except OSError as error:
        print(f"agent: cannot make {state_directory}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    status = StatusFile(state_directory)
    supervisor = Supervisor(stdout_fd=1)
    secrets: Sequence[bytes] = ()
    grace_seconds = _DEFAULT_GRACE_SECONDS
    try:
        config = load(config_path)
        secrets, grace_seconds = config.secrets, config.limits.grace_seconds
        status.run_id = config.run_id
        return _Boot(config, Markers(state_directory), status, supervisor).run()
    except ConfigError as error:
        _report(status, secrets, f"the workspace cannot be booted: {error}")
    except StepFailed as error:
        _report(status, secrets, str(error), error.step, error.tail)
    except Exception as error:
        traceback.print_exc()
        _report(status, secrets, f"the agent failed: {error!r}")
    supervisor.terminate_everything(grace_seconds)
    return EXIT_FAILED


def _report(
    status: StatusFile,
    secrets: Sequence[bytes],
    message: str,
    step: Optional[StepStatus] = None,
    tail: str = "",
) -> None:
    safe = bounded_text(mask(message.encode("utf-8", "replace"), secrets), _MESSAGE_BYTES)
    print(f"agent: {safe}", file=sys.stderr, flush=True)
    try:
        status.write("failed", step=step, message=safe, tail=tail)
    except OSError as error:
        print(f"agent: cannot write the status file: {error}", file=sys.stderr, flush=True)


class _Boot:
    def __init__(
        self, config: Config, markers: Markers, status: StatusFile, supervisor: Supervisor
    ) -> None:
        self._config = config
        self._markers = markers
        self._status = status
        self._supervisor = supervisor
        self._account = account_of(config)
        self._env = environment_of(config, os.environ)
        self._runner = Runner(supervisor, self._account, self._env, config.limits, config.secrets)

    def run(self) -> int:
        try:
            self._status.write("dotfiles")
            make_directory(self._config.workspace_root, self._account)
            make_directory(self._config.working_directory, self._account)
            self._apply_dotfiles()
            self._set_up()
            self._start_up()
            if self._config.foreground.step is None:
                self._check_harness(self._config.foreground.command)
                return self._hold_open()
            return self._run_foreground(self._config.foreground.step)
        except Stopped as stop:
            return self._stop(stop.number)

    def _apply_dotfiles(self) -> None:
        dotfiles = self._config.dotfiles
        if dotfiles is None or self._markers.has(DOTFILES_DONE):
            return
        self._run_step("dotfiles", self._dotfiles_command(dotfiles))
        if dotfiles.bootstrap:
            script = dotfiles.bootstrap_command or _DEFAULT_BOOTSTRAP
            argv = ("/bin/sh", "-c", script)
            self._run_step("dotfiles", Command("dotfiles", 1, "dotfiles", argv, dotfiles.path))
        self._markers.add(DOTFILES_DONE)

    def _dotfiles_command(self, dotfiles: Dotfiles) -> Command:
        """This program again, as the user: nothing is written that the user could not write."""
        argv = [sys.executable, "-I", os.path.abspath(sys.argv[0]), "dotfiles"]
        argv += ["--source", dotfiles.path, "--manager", dotfiles.manager]
        argv += ["--home", self._config.home, "--target", dotfiles.target]
        return Command("dotfiles", 0, "dotfiles", argv, "/")

    def _set_up(self) -> None:
        if self._markers.has(SETUP_DONE):
            return
        for index, step in enumerate(self._config.setup):
            if not self._markers.has(setup_step_done(index)):
                self._run_step("setup", self._command(step, "setup", index))
                self._markers.add(setup_step_done(index))
        self._markers.add(SETUP_DONE)

    def _start_up(self) -> None:
        for index, step in enumerate(self._config.startup):
            self._run_step("startup", self._command(step, "startup", index))

    def _run_step(self, phase: str, command: Command) -> None:
        self._status.write(phase, step=command.status())
        self._runner.run(command)

    def _command(self, step: Step, kind: str, index: int) -> Command:
        return command_of(step, kind, index, self._config.working_directory)

    def _check_harness(self, command: Sequence[str]) -> None:
        if command and not can_execute(self._account, self._env, command[0]):
            raise StepFailed(
                f"cannot be started: {command[0]} is not an executable program on the PATH "
                f"of the user {self._account.name} ({self._env['PATH']})",
                StepStatus("foreground", "foreground", 0),
            )

    def _hold_open(self) -> int:
        """A harness without a terminal would end at once, so sessions and runs start it."""
        self._status.write("ready")
        while True:
            for number in self._supervisor.turn():
                if number in STOPPING:
                    return self._stop(number)

    def _run_foreground(self, step: Step) -> int:
        command = self._command(step, "foreground", 0)
        self._status.write("startup", step=command.status())
        running = self._runner.start(command)
        stop = _ForegroundStop(running, self._config.limits.grace_seconds)

        settled = time.monotonic() + _SETTLE_SECONDS
        while running.child.exit is None and time.monotonic() < settled:
            stop.handle(self._supervisor.turn(stop.deadline_before(settled)))
        if running.child.exit is None:
            self._status.write("ready", step=command.status())
        elif not stop.requested:
            ended = running.child.exit
            tail = running.capture.finish()
            raise StepFailed(f"{ended} at once", command.status(ended), tail)

        while running.child.exit is None:
            stop.handle(self._supervisor.turn(stop.deadline))
        ended = running.child.exit
        tail = running.capture.finish()
        message = f"the foreground {ended}"
        self._status.write("stopped", step=command.status(ended), message=message, tail=tail)
        self._supervisor.terminate_everything(stop.seconds_left())
        return ended.status

    def _stop(self, number: int) -> int:
        self._status.write("stopped", message=f"stopped by {name_of(number)}")
        self._supervisor.terminate_everything(self._config.limits.grace_seconds)
        return 128 + number


class _ForegroundStop:
    """Passes signals on to the foreground; ends everything when TERM was not obeyed in time."""

    def __init__(self, running: Running, grace_seconds: float) -> None:
        self._running = running
        self._grace_seconds = grace_seconds
        self.deadline: Optional[float] = None

    @property
    def requested(self) -> bool:
        return self.deadline is not None

    def handle(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._running.child.signal_group(number)
            if number == signal.SIGTERM and self.deadline is None:
                self.deadline = time.monotonic() + self._grace_seconds
        if self.deadline is not None and time.monotonic() >= self.deadline:
            reaper.signal_everything(signal.SIGKILL)

    def deadline_before(self, other: float) -> float:
        return other if self.deadline is None else min(self.deadline, other)

    def seconds_left(self) -> float:
        if self.deadline is None:
            return self._grace_seconds
        return max(0.0, self.deadline - time.monotonic())
