"""Capture of a terminal's output against a bare pseudo-terminal that only reads the same bytes.

Both run ``cat`` of one file on a terminal with the same settings, and are timed from the program's
start to the end of its output. Ours masks, numbers, frames and stores every byte meanwhile; its
client has left, so that nobody but the recorder reads. Runnable alone:
``python -m tests.bench.record capture``.
"""

from __future__ import annotations

import os
import pty
import statistics
import subprocess
import time
from pathlib import Path

from runs.agent.record.frames import Kind, Stream
from runs.agent.session.channel import FromClient, ToClient
from tests.bench.figures import Figure
from tests.runs.agent.booted import workspace
from tests.runs.agent.connected import PTY, Session
from tests.runs.agent.recorded import Runs

BYTES = 96 * 1024**2
ROUNDS = 7
_READ_BYTES = 65536


def measure() -> list[Figure]:
    """Return the figure of capture; the database is not used."""
    with workspace() as place:
        runs = Runs(place)
        content = place.directory / "output.txt"
        content.write_bytes(_log_lines(BYTES))
        content.chmod(0o644)
        ours: list[float] = []
        floors: list[float] = []
        for warm in (True, *[False] * ROUNDS):
            taken = _recorded(runs, content), _bare(content)
            if not warm:
                ours.append(taken[0])
                floors.append(taken[1])
    mine, floor = statistics.median(ours), statistics.median(floors)
    ratio = floor / mine
    return [
        Figure(
            f"capture of a terminal, {BYTES >> 20} MiB, median of {ROUNDS}",
            _rate(mine),
            f"{_rate(floor)} (bare terminal)",
            ratio,
            ">= 0.90x",
            ratio >= 0.9,
        )
    ]


def _recorded(runs: Runs, content: Path) -> float:
    """Seconds from the program's start to its end, as its own record tells them."""
    session = Session(runs, record={"spoolBytes": 4 << 30})
    session.open("command", argv=["cat", str(content)], pty=PTY).until(ToClient.OPENED)
    session.send(FromClient.DETACH)
    session.leave()
    # Its end is waited for without looking: to read the growing record would take half the machine.
    session.end()
    record = runs.sealed(session.run_id)
    written = sum(
        len(event.body) for event in record.of(Kind.IO_CHUNK) if event.stream == Stream.PTY_OUTPUT
    )
    if written < BYTES or record.seal["exit"]["code"] != 0:
        raise RuntimeError(f"only {written} bytes were recorded: {record.seal}")
    started = record.of(Kind.PROCESS_STARTED)[0].monotonic_ns
    closed = record.of(Kind.PROCESS_STREAM_CLOSED)[-1].monotonic_ns
    runs.forget(session.run_id)
    return (closed - started) / 1e9


def _bare(content: Path) -> float:
    """Seconds that a reader which does nothing else needs for the same bytes."""
    ours, theirs = pty.openpty()
    started = time.perf_counter()
    process = subprocess.Popen(
        ["cat", str(content)], stdin=subprocess.DEVNULL, stdout=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        while os.read(ours, _READ_BYTES):
            pass
    except OSError:
        pass  # how a terminal says that the other side has closed it
    taken = time.perf_counter() - started
    process.wait()
    os.close(ours)
    return taken


def _log_lines(size: int) -> bytes:
    lines = b"".join(
        b"2026-01-02T03:04:05.%06dZ INFO worker: job %d done in %d ms, state=ok\n"
        % (number, number * 7919, number % 977)
        for number in range(20_000)
    )
    return (lines * (size // len(lines) + 1))[:size]


def _rate(seconds: float) -> str:
    return f"{BYTES / seconds / 1e6:.0f} MB/s"
