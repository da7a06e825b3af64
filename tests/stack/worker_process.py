"""A real ``manage.py buildworker`` beside a test, on the test's own database and queue."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pika
from django.conf import settings
from django.db import connection
from pika.adapters.blocking_connection import BlockingChannel

from controlplane.work.amqp import Topology
from tests.support.broker_parameters import patient_parameters
from tests.support.waiting import LONG_WAIT, rest
from workspaces.lifecycle.build_messages import BUILD_REQUESTED

ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that works where this test does."""
    at = connection.settings_dict
    user, password, host = (quote(str(at[key]), safe="") for key in ("USER", "PASSWORD", "HOST"))
    names = ("DATABASE_URL_FILE", "SVC_OWNER_USER_ID")
    return {
        **{name: value for name, value in os.environ.items() if name not in names},
        "DATABASE_URL": f"postgres://{user}:{password}@{host}:{at['PORT']}/{at['NAME']}",
        "SVC_INSTANCE_ID": settings.SVC_INSTANCE_ID,
        "WORKSPACE_BUILD_QUEUE": settings.WORKSPACE_BUILD_QUEUE,
        "WORKSPACE_RUN_QUEUE": settings.WORKSPACE_RUN_QUEUE,
        "SVC_NETWORK_GUARD": "external",  # no container for it beside those of each test
        "SVC_WORKSPACE_MAX_DISK_BYTES": "0",  # nor one that counts
        "SVC_LOG_FORMAT": "json",
        "SVC_WEB_PORT": "0",
        # No test waits for the index of a distribution that it did not ask for.
        "PACKAGE_SYNC_FAMILIES": "",
        **changes,
    }


class CommandProcess:
    """A management command as a process of its own; its log is kept for messages."""

    before: tuple[str, ...] = ()
    """What starts the command, where something has to."""

    def __init__(self, log: Path, *command: str, **changes: str) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, "manage.py", *command],
                cwd=ROOT,
                env=environment(**changes),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def told(self) -> str:
        """What it has logged so far."""
        return self.log.read_text(errors="replace")

    def wait(self, timeout: float = LONG_WAIT) -> int:
        """Wait for its end and return the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end:\n{self.told[-4000:]}") from None

    def stop(self) -> int:
        """End it in order; at once when it does not within a minute."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LONG_WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


class WorkerProcess(CommandProcess):
    """A build worker."""

    def __init__(self, log: Path, *, max_jobs: int | None = None, **changes: str) -> None:
        limit = () if max_jobs is None else ("--max-jobs", str(max_jobs))
        super().__init__(log, "buildworker", *limit, **changes)


def eventually(
    look: Callable[[], T], *, what: str, timeout: float = LONG_WAIT, every: float = 0.1
) -> T:
    """Return what ``look`` returns as soon as it is true; fail when it does not become so."""
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        rest(began, least=every)


def declare(topology: Topology) -> None:
    """Make the queues of ``topology``, as the first message that is published does."""
    with _channel() as channel:
        topology.declare(channel)


@contextlib.contextmanager
def _channel() -> Iterator[BlockingChannel]:
    broker = pika.BlockingConnection(patient_parameters(settings.RABBITMQ_URL))
    try:
        yield broker.channel()
    finally:
        broker.close()  # what was not acknowledged goes back


def messages_in(queue: str) -> list[tuple[str | None, bytes]]:
    """Return message id and body of everything that waits in ``queue``; it stays there."""
    found: list[tuple[str | None, bytes]] = []
    with _channel() as channel:
        BUILD_REQUESTED.topology().declare(channel)
        while True:
            method, properties, body = channel.basic_get(queue)
            if method is None or properties is None or body is None:
                return found
            found.append((properties.message_id, body))


def dead_letters() -> dict[str | None, bytes]:
    """Return the rejected messages of the build queue by their id."""
    return dict(messages_in(BUILD_REQUESTED.topology().dead_letter_queue))


def settled(read: Callable[[], Mapping[str, Any]], timeout: float) -> list[Mapping[str, Any]]:
    """Read again and again until the status is a last one; return every reading that differed."""
    readings: list[Mapping[str, Any]] = []
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        now = read()
        if not readings or readings[-1] != now:
            readings.append(now)
        if now["status"] in {"ready", "failed", "cancelled", "stopped"}:
            return readings
        assert time.monotonic() < deadline, f"still {now['status']}: {now.get('reason')}"
        rest(began)
