"""``agent tail`` of one run, as the recorder sees it: a greeting, frames as they come, acks."""

from __future__ import annotations

import json
import struct
import time
import uuid
from dataclasses import dataclass

from runs.agent.record.frames import FrameError, next_frame
from runs.recording.control import RunControl
from workspaces.runtimes.base import AgentChannel, RuntimeAdapter

NO_SUCH_RUN = 4
UNREADABLE = frozenset({1, 2, 5})
"""How the agent ends when it cannot read the spool: it failed, it refused, it found damage."""
HELLO_SECONDS = 20.0
SILENT_SECONDS = 20.0
"""The agent sends something every five seconds; one that does not is not connected any more."""

NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading an object out of forged JSON may raise."""

_ACK = struct.Struct("!Q")
_HELLO_LIMIT = 64 * 1024


class TailEndedError(Exception):
    """The channel ended, or says nothing any more. ``exit_code`` None: the connection was cut.

    ``errors``: what the agent wrote to its standard error, as it came.
    """

    def __init__(self, exit_code: int | None, errors: str = "") -> None:
        super().__init__(f"tail ended with {exit_code}: {errors[-500:]}")
        self.exit_code = exit_code
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Hello:
    """What the agent says first: which spool this is, and what it holds."""

    spool_id: str
    first: int
    last: int
    sealed: bool


class TailChannel:
    """One connection to ``agent tail``. Must be closed."""

    def __init__(self, channel: AgentChannel, received: bytes = b"") -> None:
        self._channel = channel
        self._buffer = received
        self._silence = 0.0
        self.hello = self._read_hello()

    @classmethod
    def open(
        cls, adapter: RuntimeAdapter, boot_run_id: uuid.UUID, run_id: uuid.UUID, first: int
    ) -> TailChannel:
        """Follow the run from its spool's event ``first``.

        Raises ``LaunchError`` as the adapter does, ``TailEndedError`` when there is no such run.
        """
        channel = adapter.open_agent(boot_run_id, ["tail", str(run_id), "--from", str(first)])
        try:
            return cls(channel)
        except BaseException:
            channel.close()
            raise

    def read(self, timeout: float, *, wake: RunControl | None = None) -> list[bytes]:
        """Return the contents of the frames that came within ``timeout`` seconds, perhaps none.

        ``wake`` ends the wait when its worker asks for something. Raises ``TailEndedError`` when
        there will be no more, ``FrameError`` for what is no frame.
        """
        found = self._take_frames()
        if not found:
            self._receive(timeout, wake)
            found = self._take_frames()
        return found

    def acknowledge(self, sequence: int) -> None:
        """Tell the agent that everything up to ``sequence`` is committed."""
        self._channel.write(_ACK.pack(sequence))

    def wait_end(self, seconds: float) -> None:
        """Wait for the agent to end, which it does once it knows that the end is committed."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                self.read(0.1)
            except (TailEndedError, FrameError):
                return

    def close(self) -> None:
        """Give the connection up."""
        self._channel.close()

    def _take_frames(self) -> list[bytes]:
        """Return the whole frames of what was received; damage behind them is for the next call."""
        found: list[bytes] = []
        start = 0
        try:
            while (frame := next_frame(self._buffer, start)) is not None:
                content, start = frame
                if content:
                    found.append(content)
        except FrameError:
            if not found:
                raise
        self._buffer = self._buffer[start:]
        return found

    def _receive(self, timeout: float, wake: RunControl | None = None) -> None:
        began = time.monotonic()
        if wake is None:
            data = self._channel.read(timeout)
        else:
            data = self._channel.read(timeout, wake=wake.fileno())
            wake.seen()
        if data:
            self._silence = 0.0
            self._buffer = self._buffer + data if self._buffer else data
            return
        if data is not None:
            raise TailEndedError(self._channel.exit_code(), self._channel.errors())
        # Only time spent listening counts: whoever waits for the database does not listen.
        self._silence += time.monotonic() - began
        if self._silence > SILENT_SECONDS:
            raise TailEndedError(None, "silent")

    def _read_hello(self) -> Hello:
        until = time.monotonic() + HELLO_SECONDS
        while b"\n" not in self._buffer:
            self._receive(max(0.0, until - time.monotonic()))
            if time.monotonic() > until or len(self._buffer) > _HELLO_LIMIT:
                raise TailEndedError(None, "no greeting")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            members = json.loads(line)
            return Hello(
                # Only what names a spool: other sources of a record have names of other forms.
                str(uuid.UUID(members["spoolId"])),
                int(members["first"]),
                int(members["last"]),
                bool(members["sealed"]),
            )
        except NOT_OURS as exc:
            raise FrameError("the greeting is not one of ours") from exc
