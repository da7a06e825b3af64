"""`agent boot`: PID 1 of a workspace, from an empty container to `ready`, and until its end.

Phases: unbound (of a workspace that was started before it is known whose it will be), credentials
(each boot of a workspace that has any, until they come), dotfiles (first boot only), setup (each
step once per container), startup (each boot), then ready while the foreground runs. A boot that
fails says so in the status file first, then ends every process and exits 70. A foreground that ends
takes the workspace with it, and its exit status becomes the container's; a stop that meets no
foreground exits with 128 + the signal's number.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Dict, Optional, Sequence

from ..config import Config, ConfigError, Dotfiles, Step, load
from ..credentials.account_store import is_delivered, read_set
from ..credentials.child_environment import account_of, environment_of, make_directory
from ..credentials.values import live_values
from ..masking.masker import Masker, secret_values
from ..process import reaper
from ..process.program import Account, can_execute
from ..process.signals import STOPPING, name_of
from ..record.spool import SpoolFailed
from ..record.tail import bounded_text
from ..status_file import StatusFile, StepStatus
from .binding import await_binding
from .boot_record import BootRecord, Ending, RecordError, ending_of, start_failed
from .callers import Callers, Serve
from .markers import DOTFILES_DONE, SETUP_DONE, Markers, setup_step_done
from .steps import Command, Runner, StepFailed, Stopped, command_of
from .supervisor import Running, Supervisor

EXIT_FAILED = 70

# A command that cannot work (a typo, a missing library) ends within this time and is never called
# ready.
_SETTLE_SECONDS = 0.1
_KILL_AGAIN_SECONDS = 0.1
_READERS_SECONDS = 2.0
_DEFAULT_GRACE_SECONDS = 10.0
_CREDENTIALS = "credentials"
# Only while a boot waits for its credentials; they usually come within a fraction of a second.
_LOOK_SECONDS = 0.01
_LOOK_LATER_SECONDS = 0.25
_MESSAGE_BYTES = 4096
_DEFAULT_BOOTSTRAP = "if [ -f ./install.sh ] && [ -x ./install.sh ]; then exec ./install.sh; fi"


def boot(config_path: str, state_directory: str, serve: Serve) -> int:
    """Boot the workspace and stay until it ends; returns the exit code of the container.

    `serve` runs a subcommand in a process of its own and returns its exit code.
    """
    os.umask(0o022)
    try:
        os.makedirs(state_directory, mode=0o755, exist_ok=True)
    except OSError as error:
        print(f"agent: cannot make {state_directory}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    status = StatusFile(state_directory)
    supervisor = Supervisor(stdout_fd=1)
    supervisor.callers = _callers(state_directory, serve)
    masker = Masker(())
    grace_seconds = _DEFAULT_GRACE_SECONDS
    ending: Ending = {"code": EXIT_FAILED, "signal": None, "reason": "exited"}
    try:
        stopped_by = await_binding(config_path, status, supervisor)
        if stopped_by is not None:
            _write_last(status, "stopped", message=f"stopped by {name_of(stopped_by)}")
            return 128 + stopped_by
        config = load(config_path)
        grace_seconds = config.limits.grace_seconds
        status.run_id = config.run_id
        account, env = account_of(config), environment_of(config, os.environ)
        secrets = (*config.secrets, *secret_values(env))
        masker = Masker(secrets, live_values(config, account))
        supervisor.record = BootRecord(
            config, state_directory, boot_id=status.boot_id, account=account, masker=masker
        )
        supervisor.shows_masked = config.credentials is not None
        runner = Runner(supervisor, account, env, config.limits, masker, secrets)
        workspace = _Boot(config, Markers(state_directory), status, supervisor, runner)
        return workspace.run(account)
    except ConfigError as error:
        _report(status, supervisor, masker, f"the workspace cannot be booted: {error}")
    except RecordError as error:
        _report(status, supervisor, masker, f"the boot cannot be recorded: {error}")
    except NotDelivered as error:
        _report(status, supervisor, masker, str(error))
    except StepFailed as error:
        ending = error.ending
        _report(status, supervisor, masker, str(error), error.step, error.tail)
    except Exception as error:
        # Its import takes as long as much of a boot.
        import traceback

        traceback.print_exc()
        _report(status, supervisor, masker, f"the agent failed: {error!r}")
    try:
        supervisor.terminate_everything(grace_seconds)
    except (SpoolFailed, OSError) as error:
        # Nothing goes on that is not recorded.
        _stop_recording(supervisor, error)
        reaper.signal_everything(signal.SIGKILL)
    _end_record(supervisor, "ended", ending)
    return EXIT_FAILED


def _callers(state_directory: str, serve: Serve) -> Optional[Callers]:
    """Serve the control plane's calls, as PID 1 of a container; without, the engine starts them."""
    if os.getpid() != 1:
        return None
    try:
        return Callers(state_directory, serve)
    except OSError as error:
        print(f"agent: no calls are served: {error.strerror}", file=sys.stderr, flush=True)
        return None


def _report(
    status: StatusFile,
    supervisor: Supervisor,
    masker: Masker,
    message: str,
    step: Optional[StepStatus] = None,
    tail: str = "",
) -> None:
    safe = bounded_text(masker.mask(message.encode("utf-8", "replace")), _MESSAGE_BYTES)
    print(f"agent: {safe}", file=sys.stderr, flush=True)
    _write_last(status, "failed", step=step, message=safe, tail=tail)
    if supervisor.record is not None:
        try:
            supervisor.record.state("failed", step=step, message=safe)
        except (SpoolFailed, OSError) as error:
            _stop_recording(supervisor, error)


def _write_last(
    status: StatusFile,
    phase: str,
    *,
    step: Optional[StepStatus] = None,
    message: str,
    tail: str = "",
) -> None:
    """Say how it ends. Where that cannot be written, a full disk say, it ends all the same."""
    try:
        status.write(phase, step=step, message=message, tail=tail)
    except OSError as error:
        print(f"agent: cannot write the status file: {error}", file=sys.stderr, flush=True)


def _end_record(supervisor: Supervisor, reason: str, ending: Optional[Ending]) -> None:
    if supervisor.record is not None:
        try:
            supervisor.record.end(reason, ending)
        except (SpoolFailed, OSError) as error:
            _stop_recording(supervisor, error)


def _stop_recording(supervisor: Supervisor, error: Exception) -> None:
    print(f"agent: the record of the boot cannot be written: {error}", file=sys.stderr, flush=True)
    supervisor.record = None


class NotDelivered(Exception):
    """The credentials did not come in time; the message says so."""


class _Boot:
    def __init__(
        self,
        config: Config,
        markers: Markers,
        status: StatusFile,
        supervisor: Supervisor,
        runner: Runner,
    ) -> None:
        self._config = config
        self._markers = markers
        self._status = status
        self._supervisor = supervisor
        self._runner = runner

    def run(self, account: Account) -> int:
        try:
            if self._config.credentials is not None:
                self._await_credentials(self._config.credentials)
                self._runner.env = environment_of(self._config, os.environ)
            self._enter("dotfiles")
            make_directory(self._config.workspace_root, account)
            make_directory(self._config.working_directory, account)
            self._apply_dotfiles()
            self._set_up()
            self._start_up()
            if self._config.foreground.step is None:
                _check_harness(self._config.foreground.command, account, self._runner.env)
                return self._hold_open()
            return self._run_foreground(self._config.foreground.step)
        except Stopped as stop:
            return self._stop(stop.number)

    def _await_credentials(self, place: str) -> None:
        """Wait until they are there: after a start of the container the memory is always empty."""
        self._enter(_CREDENTIALS)
        began = time.monotonic()
        limit = self._config.limits.credential_seconds
        while not is_delivered(place):
            now = time.monotonic()
            if now >= began + limit:
                raise NotDelivered(f"the credentials did not arrive within {limit:g} seconds")
            look = _LOOK_SECONDS if now < began + 5.0 else _LOOK_LATER_SECONDS
            for number in self._supervisor.turn(min(now + look, began + limit)):
                if number in STOPPING:
                    raise Stopped(number)
        present = read_set(place)
        if present is not None and present.notes and self._supervisor.record is not None:
            self._supervisor.record.state(_CREDENTIALS, message="; ".join(present.notes))

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
        argv = [sys.executable, "-IS", os.path.abspath(sys.argv[0]), "dotfiles"]
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
        self._enter(phase, step=command.status())
        self._runner.run(command)

    def _enter(self, phase: str, *, step: Optional[StepStatus] = None) -> None:
        """Say how far the boot has come, in the record first: it is what others wait for."""
        if self._supervisor.record is not None:
            self._supervisor.record.state(phase, step=step)
        self._status.write(phase, step=step)

    def _command(self, step: Step, kind: str, index: int) -> Command:
        return command_of(step, kind, index, self._config.working_directory)

    def _hold_open(self) -> int:
        """A harness without a terminal would end at once, so sessions and runs start it."""
        self._enter("ready")
        while True:
            for number in self._supervisor.turn():
                if number in STOPPING:
                    return self._stop(number)

    def _run_foreground(self, step: Step) -> int:
        command = self._command(step, "foreground", 0)
        self._enter("startup", step=command.status())
        running = self._runner.start(command)
        stop = _ForegroundStop(self._supervisor, running, self._config.limits.grace_seconds)

        settled = time.monotonic() + _SETTLE_SECONDS
        while running.child.exit is None and time.monotonic() < settled:
            stop.handle(self._supervisor.turn(stop.deadline_before(settled)))
        if running.child.exit is None:
            self._enter("ready", step=command.status())
        elif not stop.requested:
            ended = running.child.exit
            status, ending = command.status(ended), ending_of(ended)
            reason = f"{ended} right after its start; it has to go on running"
            raise StepFailed(reason, status, ending, running.tail)

        while running.child.exit is None:
            stop.handle(self._supervisor.turn(stop.deadline))
        ended = running.child.exit
        message = f"the foreground {ended}"
        status = command.status(ended)
        _write_last(self._status, "stopped", step=status, message=message, tail=running.tail)
        self._end(stop.seconds_left(), message, stop.requested, ending_of(ended), status)
        return ended.status

    def _stop(self, number: int) -> int:
        message = f"stopped by {name_of(number)}"
        _write_last(self._status, "stopped", message=message)
        self._end(self._config.limits.grace_seconds, message, True, None)
        return 128 + number

    def _end(
        self,
        grace_seconds: float,
        message: str,
        requested: bool,
        ending: Optional[Ending],
        step: Optional[StepStatus] = None,
    ) -> None:
        """End everything, which gives other runs the time to end their records, then our own."""
        if self._supervisor.record is not None:
            self._supervisor.record.stopping(step=step, message=message)
        self._supervisor.terminate_everything(grace_seconds)
        _end_record(self._supervisor, "stopped" if requested else "ended", ending)
        record = self._supervisor.record
        if record is not None and not self._config.record.restart:
            # Read now, nobody has to take it out of the ended container.
            self._supervisor.wait_for_readers(record.runs_root, _READERS_SECONDS)


def _check_harness(command: Sequence[str], account: Account, env: Dict[str, str]) -> None:
    if command and not can_execute(account, env, command[0]):
        raise StepFailed(
            f"cannot be started: {command[0]} is not an executable program on the PATH "
            f"of the user {account.name} ({env['PATH']})",
            StepStatus("foreground", "foreground", 0),
            start_failed(127),
        )


class _ForegroundStop:
    """Passes signals on to the foreground; ends everything when TERM was not obeyed in time."""

    def __init__(self, supervisor: Supervisor, running: Running, grace_seconds: float) -> None:
        self._supervisor = supervisor
        self._running = running
        self._grace_seconds = grace_seconds
        self.deadline: Optional[float] = None
        """When everything is killed, or killed again."""
        self._killed = False

    @property
    def requested(self) -> bool:
        return self.deadline is not None

    def handle(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            stops = number == signal.SIGTERM
            self._supervisor.signal_group(self._running, number, "stop" if stops else "client")
            if stops and self.deadline is None:
                self.deadline = time.monotonic() + self._grace_seconds
                # They need the time as much as the foreground does.
                reaper.terminate_recorders()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            # The event of the first time says all; what takes long to die needs no more of them.
            if self._killed:
                reaper.signal_everything(signal.SIGKILL)
            else:
                self._supervisor.kill_everything()
            self._killed = True
            self.deadline = time.monotonic() + _KILL_AGAIN_SECONDS

    def deadline_before(self, other: float) -> float:
        return other if self.deadline is None else min(self.deadline, other)

    def seconds_left(self) -> float:
        if self.deadline is None:
            return self._grace_seconds
        if self._killed:
            return 0.0
        return max(0.0, self.deadline - time.monotonic())
