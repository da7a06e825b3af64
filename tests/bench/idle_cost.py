"""What each idle workspace costs: the slope between few and many, without what the rest costs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

SETTLE_SECONDS = 35.0
"""An idle record is at rest after 30 s."""
WATCHED_SECONDS = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class IdleCost:
    """What some workspaces cost while nothing happens."""

    mib: float
    """PSS of their processes."""
    inside: float
    """Percent of a core that their processes take."""
    run_worker: float
    """Percent of a core that the run worker takes."""

    def each_more(self, many: IdleCost, number: int) -> IdleCost:
        """Return what each of ``number`` further workspaces costs, when ``many`` has them too.

        What the run worker does whatever the number is charged to none of them.
        """
        return IdleCost(
            (many.mib - self.mib) / number,
            (many.inside - self.inside) / number,
            (many.run_worker - self.run_worker) / number,
        )


def idle_cost(run_ids: Sequence[str]) -> IdleCost:
    """Wait until workspaces are at rest, and watch them."""
    time.sleep(SETTLE_SECONDS)
    inside = [pid for run_id in run_ids for pid in _processes_in(run_id)]
    workers = [pid for pid in _below(os.getpid()) if "manage.py runworker" in _command_of(pid)]
    before = sum(map(_cpu_of, inside)), _ticks_of(workers)
    time.sleep(WATCHED_SECONDS)
    spent = sum(map(_cpu_of, inside)) - before[0]
    worker = (_ticks_of(workers) - before[1]) / TICKS
    return IdleCost(
        sum(map(_pss_of, inside)) / 1024,
        spent / WATCHED_SECONDS * 100,
        worker / WATCHED_SECONDS * 100,
    )


def _processes_in(run_id: str) -> list[int]:
    done = subprocess.run(
        [settings.DOCKER_CLI, "top", f"svc-{run_id}", "-eo", "pid"],
        env={**os.environ, "DOCKER_HOST": settings.DOCKER_HOST},
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()[1:]]


def _below(root: int) -> list[int]:
    found = [root]
    for pid in found:
        children = Path(f"/proc/{pid}/task").glob("*/children")
        found += [int(child) for path in children for child in path.read_text().split()]
    return found


def _command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


def _cpu_of(pid: int) -> float:
    """Return seconds, to the nanosecond: an idle process takes less than a tick."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def _ticks_of(pids: Iterable[int]) -> int:
    """Return ticks, in which threads that have ended are counted too."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(found[11]) + int(found[12]) for found in fields)


def _pss_of(pid: int) -> int:
    told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:"))
