"""One call of the agent for asyncio, however it is reached: what an engine's stream has to be."""

from __future__ import annotations

from typing import Protocol


class Receiver(Protocol):
    """Who an exec's output is for. Called in the event loop; must not block."""

    def output_received(self, data: bytes) -> None:
        """Take the next bytes of its standard output."""

    def input_paused(self) -> None:
        """Write no more for now: the exec does not take it as fast."""

    def input_resumed(self) -> None:
        """Write on."""

    def output_ended(self) -> None:
        """Know that nothing more comes, because it ended or the connection is lost."""


class AgentStream(Protocol):
    """The streams of one call of the agent, however it was reached."""

    def write(self, data: bytes) -> None:
        """Give it these bytes as input; nothing once it has ended.

        What it does not take is kept: whoever writes has to stop while ``input_paused``.
        """

    def close(self) -> None:
        """End its input after what was written, and the connection."""

    def abort(self) -> None:
        """Give the connection up at once."""

    def pause_output(self) -> None:
        """Have its output wait for now."""

    def resume_output(self) -> None:
        """Go on after ``pause_output``."""

    @property
    def waiting_bytes(self) -> int:
        """How much was written that has not been taken yet."""

    def errors(self) -> str:
        """Return the end of what it said on its standard error, for the log."""

    async def exit_code(self, timeout: float) -> int | None:
        """Return how it ended; None while it runs, and when that cannot be known."""

    async def container_runs(self, timeout: float) -> bool | None:
        """Return whether its container still runs; None when the engine does not say."""
