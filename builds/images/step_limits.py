"""What each step of a build may use, and the network it is in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

_CPU_PERIOD = 100_000


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What each step of a build may use, and the network it is in.

    ``network`` makes one for a build, which is there for the block; its name is the result. What it
    is called with is None, or makes known that the network is under an egress policy: then it is
    called with the name of the bridge.
    """

    network: Callable[[Callable[[str], None] | None], AbstractContextManager[str]]
    memory_mb: int
    cpus: float
    pids: int

    def options(self) -> list[str]:
        """Return the options that the classic builder takes; BuildKit knows nothing of the kind."""
        return [
            *("--memory", f"{self.memory_mb}m", "--memory-swap", f"{self.memory_mb}m"),
            *("--cpu-period", str(_CPU_PERIOD), "--cpu-quota", str(int(self.cpus * _CPU_PERIOD))),
        ]

    def container_options(self) -> list[str]:
        """Return those of a container of our own, which can have all of them."""
        return [*self.options(), "--pids-limit", str(self.pids)]
