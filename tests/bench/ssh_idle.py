"""What sessions cost that nobody uses: people leave them open for days."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench.ssh_clients import client, until
from tests.bench.ssh_place import PROMPT, Place, Side

LIMIT_MIB = 1.0
CONTAINER_MIB = 3.0
CONTAINER_CPU = 0.02
"""Percent of a core, of each session."""
_AT_ONCE = 4
_SETTLE_SECONDS = 3.0
_AT_REST_SECONDS = 35.0
"""What follows a record is at rest after 30 s without news."""
_WATCHED_SECONDS = 30.0


@dataclass(frozen=True)
class Cost:
    """MiB of proportional memory: of each session where it grows with them, and in all."""

    sessions: int
    gateway: float
    gateway_before: float
    gateway_cpu: float
    """Percent of one processor that the gateway takes while nobody does anything."""
    run_worker: float
    container: float
    container_cpu: float
    processes: float
    """Processes in the container for each session, its shell among them."""
    sshd: float
    """The same session's processes of ``sshd``, its shell among them."""


def measure(place: Place, sessions: int) -> Cost:
    """Open sessions with a shell at its prompt, and look at everybody's memory.

    The gateway is a new one: what bulk transfers left in another one's heap would hide the growth.
    """
    few = min(sessions, 20)
    without = _memory(_inside(place))
    with ExitStack() as stack:
        _open(stack, place.sshd, few)
        time.sleep(_SETTLE_SECONDS)
        theirs = (_memory(_inside(place)) - without) / few
    side, process = place.start_gateway("require")
    place.rest()
    time.sleep(_SETTLE_SECONDS)
    gateway, worker = _tree(process.process.pid), _tree(place.worker.process.pid)
    inside = _inside(place)
    before = _memory(gateway), _memory(worker), _memory(inside)
    with ExitStack() as stack:
        _open(stack, side, sessions)
        time.sleep(_AT_REST_SECONDS)
        after = _memory(gateway), _memory(worker), _memory(_inside(place))
        more = len(_inside(place)) - len(inside)
        spent = _seconds(gateway), _seconds(_inside(place))
        time.sleep(_WATCHED_SECONDS)
        busy = _seconds(gateway) - spent[0], _seconds(_inside(place)) - spent[1]
    each = [(then - first) / sessions for first, then in zip(before, after, strict=True)]
    return Cost(
        sessions=sessions,
        gateway=each[0],
        gateway_before=before[0],
        gateway_cpu=busy[0] / _WATCHED_SECONDS * 100,
        run_worker=each[1],
        container=each[2],
        container_cpu=busy[1] / _WATCHED_SECONDS * 100,
        processes=more / sessions,
        sshd=theirs,
    )


def _open(stack: ExitStack, side: Side, sessions: int) -> None:
    def enter(_: int) -> None:
        process = stack.enter_context(client(side, "-tt"))
        until(process, PROMPT)

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(enter, range(sessions)))


def _tree(root: int) -> list[int]:
    """A process and everything below it."""
    parents = {int(path.name): _parent(path) for path in _processes()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _inside(place: Place) -> list[int]:
    """Every process of the container, by its number outside of it."""
    titles = place.container.top(ps_args="-eo pid")["Processes"]
    return [int(row[0]) for row in titles]


def _processes() -> Iterable[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def _parent(path: Path) -> int:
    with contextlib.suppress(OSError):
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _memory(pids: Iterable[int]) -> float:
    """MiB; what processes share counts once."""
    kib = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            kib += sum(int(size) for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.M))
    return kib / 1024


def _seconds(pids: Iterable[int]) -> float:
    """Processor time so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
