"""The samples that a build worker takes each minute: of the installation, and of its engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from controlplane.metrics import samples

EVERY = timedelta(seconds=20)
"""How often a worker looks whether the last minute has its sample."""


class MachineUsage:
    """How much of a machine's memory and processor time is in use, from its ``/proc``."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last = self._processor()

    def measure(self) -> dict[str, float]:
        """Return ``memory`` and ``cpu`` as shares of 1; ``cpu`` is of the time since last asked."""
        now, last = self._processor(), self._last
        self._last = now
        busy, total = now[0] - last[0], now[1] - last[1]
        memory = self._memory()
        return {
            "memory": round(1 - memory["MemAvailable"] / memory["MemTotal"], 4),
            # The kernel may take ticks back, of waiting for a disk above all (proc(5)).
            "cpu": round(min(max(busy, 0) / total, 1.0), 4) if total > 0 else 0.0,
        }

    def _processor(self) -> tuple[int, int]:
        """Return the ticks in which any processor was busy, and all."""
        line = (self._proc / "stat").read_text().partition("\n")[0]
        # user nice system idle iowait irq softirq steal; guests are counted in user already.
        ticks = [int(each) for each in line.split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)

    def _memory(self) -> dict[str, int]:
        lines = (self._proc / "meminfo").read_text().splitlines()
        return {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}


class MinuteSampler:
    """Takes the samples; ``engine_id`` tells the engine once it has answered, or is empty.

    The engine's machine is measured when the worker runs on it: when the engine's socket is a file.
    """

    def __init__(self, *, engine_id: Callable[[], str], docker_host: str, stale: timedelta) -> None:
        self._engine_id = engine_id
        self._stale = stale
        self._machine = MachineUsage() if docker_host.startswith("unix://") else None
        self._done: datetime | None = None

    def take(self) -> None:
        """Write what the last whole minute lacks."""
        minute = samples.last_minute()
        if minute == self._done:
            return
        samples.take(minute, stale=self._stale)
        if self._machine is not None and (engine := self._engine_id()):
            samples.store(minute, engine, self._machine.measure())
        self._done = minute
