"""Running the workers of every engine that was added, as children of one process.

A worker serves one engine, so each has a build worker and a run worker of its own. The keeper reads
from the rows which engines there are, starts what is missing, and ends what nobody wants any more:

* One that has ended is started again, each time a little later (``FIRST_PAUSE``).
* Where an engine's address or certificates have changed, new workers start at once; the old ones
  take nothing new, and end when they are done, however long that takes.
* The workers of an engine that is leaving or gone are to end at once, and are killed after
  ``KILL_AFTER``: they may wait for an engine that will not answer.

Children never outlive the keeper: it ends them in order, and the kernel kills them if it dies.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane.database.retries import database_trouble
from workspaces.engines.certificates import remove_unpacked
from workspaces.models import Engine
from workspaces.runtimes.configured_cluster import on_kubernetes

log = structlog.get_logger(__name__)

COMMANDS: Mapping[str, str] = {"build": "buildworker", "run": "runworker"}
LOOK_EVERY = 1.0
"""Seconds between two looks at the engines' rows."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds before a worker that has ended is started again; they double from one to the other."""
WELL_AFTER = 60.0
"""Seconds that a worker lives for its earlier ends to count no more."""
KILL_AFTER = 30.0
SECRETS_OF_BUILDS = (
    "REGISTRY_PASSWORD",
    "REGISTRY_USERNAME",
    "SCM_APP_PRIVATE_KEY",
    "SVC_CREDENTIALS_KEY",
    "SVC_CREDENTIALS_KEY_PREVIOUS",
)
"""What a run worker is not told."""
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
_libc = ctypes.CDLL(None, use_errno=True)


def worker_argv(kind: str) -> list[str]:
    """Return the command of a worker."""
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), COMMANDS[kind]]


@dataclass(slots=True)
class Child:
    """A worker that runs; ``told_at`` is when it was told to end."""

    engine: str
    kind: str
    access: str
    process: subprocess.Popen[bytes]
    started_at: float
    told_at: float | None = None
    at_once: bool = False


@dataclass(slots=True)
class _Ends:
    """How often a worker has ended by itself, and when the next one is started."""

    number: int = 0
    due_at: float = 0.0


@dataclass(slots=True)
class WorkerKeeper:
    """Keeps the workers of the kinds ``kinds`` running.

    ``argv`` is the command of a worker of a kind; ``clock`` tells the seconds. ``finish`` is called
    at each look, to declare engines gone whose workers have ended.
    """

    kinds: Collection[str] = tuple(COMMANDS)
    argv: Callable[[str], Sequence[str]] = worker_argv
    clock: Callable[[], float] = time.monotonic
    finish: Callable[[], None] = lambda: None
    children: list[Child] = field(default_factory=list)
    _ends: dict[tuple[str, str], _Ends] = field(default_factory=dict)
    _signals: int = 0

    def run(self) -> None:
        """Look at the engines until SIGTERM or SIGINT; return once all workers have ended.

        The first signal is passed on to the workers and lets them finish; the second ends them at
        once.
        """
        # Blocked and waited for: nothing is interrupted, and no signal is missed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        log.info("keeper_started", kinds=list(self.kinds))
        try:
            while not self._signals:
                close_old_connections()
                self.look()
                self._wait(self.pause())
            while self.children:
                self.reap()
                self._wait(LOOK_EVERY)
        finally:
            for child in self.children:
                child.process.kill()
                child.process.wait()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        log.info("keeper_stopped")

    def _wait(self, seconds: float) -> None:
        """Wait for the end of a worker or a signal, which is passed on."""
        got = signal.sigtimedwait(_SIGNALS, seconds)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._signals += 1
            self.stop(at_once=self._signals > 1)

    def pause(self) -> float:
        """Return how many seconds may pass before the next look, if no worker ends."""
        now = self.clock()
        due = [ends.due_at - now for ends in self._ends.values() if ends.due_at > now]
        return min([LOOK_EVERY, *due])

    def look(self) -> None:
        """Bring the workers into step with the rows once; without a database all stays as it is."""
        try:
            self.finish()
            wanted = self._wanted()
        except (DatabaseError, InterfaceError) as error:
            log.warning("engines_not_read", reason=database_trouble(error))
            self.reap()
            return
        self.reap()
        for child in self.children:
            if child.engine not in wanted:
                self._end(child, at_once=True)
            elif child.access != wanted[child.engine]:
                self._end(child, at_once=False)
        for key in [key for key in self._ends if key[0] not in wanted]:
            del self._ends[key]
        there = {(child.engine, child.kind) for child in self.children if child.told_at is None}
        for engine, access in wanted.items():
            for kind in self.kinds:
                if (engine, kind) not in there:
                    self._start(engine, kind, access)

    def reap(self) -> None:
        """Forget the workers that have ended, and kill those that had long enough to."""
        now = self.clock()
        for child in list(self.children):
            if child.process.poll() is None:
                if child.at_once and child.told_at is not None:
                    self._kill_late(child, now - child.told_at)
                continue
            self.children.remove(child)
            self._note_end(child, now)

    def stop(self, *, at_once: bool) -> None:
        """Tell all workers to end; ``reap`` says when they have."""
        for child in self.children:
            self._end(child, at_once=at_once)

    def _wanted(self) -> dict[str, str]:
        """Return the engines that need workers, with what stands for the way to each."""
        rows = list(Engine.objects.exclude(url="").exclude(pk=settings.SVC_ENGINE))
        for row in rows:
            if row.state == Engine.State.GONE:
                remove_unpacked(row.name)
        if on_kubernetes():
            return {}
        return {row.name: _access(row) for row in rows if row.state in Engine.SERVED}

    def _start(self, engine: str, kind: str, access: str) -> None:
        now = self.clock()
        ends = self._ends.setdefault((engine, kind), _Ends())
        if ends.due_at > now:
            return
        try:
            process = subprocess.Popen(
                [*self.argv(kind)],
                env=_environment(engine, kind),
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with(os.getpid()),  # this process has one thread
            )
        except OSError as error:
            log.warning("worker_not_started", engine=engine, kind=kind, reason=str(error))
            self._put_off(ends, now)
            return
        self.children.append(Child(engine, kind, access, process, now))
        log.info("worker_begun", engine=engine, kind=kind, pid=process.pid)

    def _note_end(self, child: Child, now: float) -> None:
        code = child.process.returncode
        log.info("worker_ended", engine=child.engine, kind=child.kind, exit_code=code)
        if child.told_at is not None:
            return
        ends = self._ends.setdefault((child.engine, child.kind), _Ends())
        if now - child.started_at >= WELL_AFTER:
            ends.number = 0
        self._put_off(ends, now)

    def _put_off(self, ends: _Ends, now: float) -> None:
        ends.due_at = now + min(FIRST_PAUSE * 2**ends.number, LONGEST_PAUSE)
        ends.number = min(ends.number + 1, 10)

    def _end(self, child: Child, *, at_once: bool) -> None:
        """Have a worker end: when it is done, or at once; each is said once."""
        if child.told_at is None:
            log.info("worker_told_to_end", engine=child.engine, kind=child.kind, at_once=at_once)
            child.process.send_signal(signal.SIGTERM)
            child.told_at = self.clock()
        if at_once and not child.at_once:
            # Another signal than the first: two of one kind may arrive as one.
            child.process.send_signal(signal.SIGINT)
            child.told_at, child.at_once = self.clock(), True

    def _kill_late(self, child: Child, seconds: float) -> None:
        if seconds >= KILL_AFTER:
            log.warning("worker_killed", engine=child.engine, kind=child.kind, after=seconds)
            child.process.kill()


def _access(engine: Engine) -> str:
    digest = hashlib.sha256(engine.url.encode() + b"\0")
    digest.update(bytes(engine.certificates or b""))
    return digest.hexdigest()


def _environment(engine: str, kind: str) -> dict[str, str]:
    environ = {**os.environ, "SVC_ENGINE": engine}
    if kind == "run":
        for name in SECRETS_OF_BUILDS:
            environ.pop(name, None)
            environ.pop(f"{name}_FILE", None)
    return environ


def _die_with(parent: int) -> Callable[[], None]:
    """Return what a child does before its program: it ends with its parent, and hears signals."""

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    return prepare
