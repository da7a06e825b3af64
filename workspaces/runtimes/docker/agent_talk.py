"""What a launch says to the agent of its container, and hears of it, until it is ready."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence

from docker.models.containers import Container

from workspaces.runtimes import boot, credentials
from workspaces.runtimes.base import LaunchError, LaunchRequest
from workspaces.runtimes.docker import agent_socket
from workspaces.runtimes.docker.credential_files import deliver
from workspaces.runtimes.docker.engine_api import (
    EXEC_GRACE_SECONDS,
    STATUS_WAIT_SECONDS,
    TICK_SECONDS,
    Engine,
)
from workspaces.runtimes.docker.exec_channel import ExecChannel
from workspaces.runtimes.docker.member_binding import bind

OUT_OF_MEMORY_SECONDS = 3.0


class LaunchProgress:
    """What a launch is doing, and whether it may go on."""

    def __init__(self, cancelled: threading.Event, timeout: float) -> None:
        self.cancelled = cancelled
        self.doing = "the engine was looked at"
        """What the error says that it was at when its time was over."""
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def seconds_left(self) -> float:
        """Return for how long the launch may still go on."""
        return self._deadline - time.monotonic()

    def proceed(self, status: boot.BootStatus | None = None) -> None:
        """Raise when the launch was cancelled or its time is over."""
        if self.cancelled.is_set():
            raise LaunchError("launch-cancelled", "The launch was cancelled.")
        if time.monotonic() >= self._deadline:
            where = boot.progress_of(status) if status else self.doing
            raise LaunchError(
                "launch-timed-out",
                f"The workspace was not ready after {self._timeout:g} s: {where}."
                + (f"\nThe end of its output:\n{status.tail}" if status and status.tail else ""),
            )


class AgentTalk:
    """The agent's side of one launch; ``marker`` is what it is told that the launch is."""

    def __init__(
        self,
        engine: Engine,
        request: LaunchRequest,
        progress: LaunchProgress,
        *,
        marker: str,
        silence: float,
        open_agent: Callable[[Engine, Container, Sequence[str], float], ExecChannel],
        calls_directly: bool,
    ) -> None:
        self._engine = engine
        self._request = request
        self._progress = progress
        self._marker = marker
        self._silence = silence
        self._open_agent = open_agent
        self._calls_directly = calls_directly

    def bind(self, container: Container) -> boot.BootStatus | None:
        """Tell a container that waits whose it is; what its agent then says of the boot."""
        return bind(
            functools.partial(self._open_agent, self._engine, container),
            boot.binding(self._marker, self._request.boot),
            limit=self._progress.seconds_left(),
            cancelled=self._progress.cancelled.is_set,
        )

    def wait_ready(self, container: Container, answer: boot.BootStatus | None) -> None:
        """Wait until the agent says ready; raises ``NotFound`` when the container goes away.

        ``answer`` is what it has said already.
        """
        self._progress.doing = boot.progress_of(None)
        status: boot.BootStatus | None = answer
        heard = time.monotonic()
        goal = boot.UNBOUND if self._request.unbound else "ready"
        while status is None or status.phase != goal:
            self._progress.proceed(status)
            if answer is None:
                left = self._progress.seconds_left()
                answer = self._ask(container, left)
            status = answer or status
            if status is not None and status.phase == goal:
                break
            container.reload()
            if status is not None and status.phase in ("failed", "stopped"):
                raise boot.failure_of(status, out_of_memory=self._out_of_memory(container))
            if container.status in ("exited", "dead"):
                raise self._exited(container)
            if answer is not None:
                heard = time.monotonic()
                # An adopted container still waits, or the engine has restarted ours.
                if answer.phase == boot.UNBOUND:
                    answer = self.bind(container)
                else:
                    waits = answer.phase == credentials.PHASE
                    answer = self.deliver(container) if waits else None
            elif time.monotonic() - heard > self._silence:
                raise LaunchError(
                    "agent-silent",
                    f"The agent in the workspace gave no answer for {self._silence:g} s.",
                )
            else:
                time.sleep(TICK_SECONDS)

    def deliver(self, container: Container) -> boot.BootStatus | None:
        """Give the container any credentials; what its agent then says of the boot, if it does."""
        make_document = self._request.credentials
        if make_document is None:
            return None
        self._progress.proceed()
        self._progress.doing = "its credentials were being delivered"
        try:
            return deliver(
                functools.partial(self._open_agent, self._engine, container),
                make_document,
                limit=self._progress.seconds_left(),
                cancelled=self._progress.cancelled.is_set,
            )
        except LaunchError as error:
            if error.code != "credentials-refused":
                raise
            return self._better_reason(container, error)

    def _ask(self, container: Container, left: float) -> boot.BootStatus | None:
        """Ask the agent how the boot is getting on, without the engine where that is possible."""
        if self._calls_directly:
            container.reload()
            arguments = ("status", "--wait", str(STATUS_WAIT_SECONDS))
            channel = agent_socket.call_soon(container, arguments, self._progress.cancelled)
            if channel is not None:
                seconds = min(left, STATUS_WAIT_SECONDS + EXEC_GRACE_SECONDS)
                with contextlib.closing(channel), contextlib.suppress(LaunchError):
                    answer = channel.answer(b"", seconds, cancelled=self._progress.cancelled.is_set)
                    return None if answer is None else boot.parse_status(answer.stdout)
                return None
        return self._engine.ask(container, self._progress.cancelled, limit=left)

    def _better_reason(self, container: Container, error: LaunchError) -> boot.BootStatus | None:
        """Return the status of a boot that has failed, None if it has ended; or raise ``error``."""
        while container.status not in ("exited", "dead"):
            self._progress.proceed()
            left = self._progress.seconds_left()
            status = self._ask(container, left)
            if status is not None and status.phase in ("failed", "stopped"):
                return status
            if status is not None and status.phase != "starting":
                raise error
            container.reload()
        return None

    def _exited(self, container: Container) -> LaunchError:
        out_of_memory = self._out_of_memory(container)
        status = self._engine.last_status(container)
        if status is not None and status.phase in ("failed", "stopped"):
            return boot.failure_of(status, out_of_memory=out_of_memory)
        return boot.exited_without_status(
            container.attrs["State"]["ExitCode"],
            container.logs(tail=50),
            secrets=boot.secrets_of(self._request.boot),
            out_of_memory=out_of_memory,
        )

    def _out_of_memory(self, container: Container) -> str:
        """Say so if the workspace ran out of memory, which the engine may know a moment later."""
        until = time.monotonic() + OUT_OF_MEMORY_SECONDS
        while not container.attrs["State"]["OOMKilled"]:
            if container.status in ("exited", "dead") or time.monotonic() > until:
                return ""
            time.sleep(TICK_SECONDS)
            container.reload()
        return f" The workspace ran out of its {self._request.memory_mb} MB of memory."
