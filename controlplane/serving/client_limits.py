"""What clients may take of a process, and how many were cut off because they took more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import structlog

from controlplane import settings
from controlplane.security.addresses import is_trusted_proxy
from controlplane.serving.connections import Connection, Phase

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 10.0
_STALLED_SECONDS = 0.25
_HELD_BYTES = 256 * 1024 * 1024
"""What all connections of a process may keep in memory."""


class Limits:
    """Says which connections are too many, too slow or too large. For one thread only.

    ``threads`` is how many there are for all requests of the process. ``closed`` counts by reason;
    whoever closes a connection adds to it, unless a method here has chosen the connection.
    """

    def __init__(self, threads: int) -> None:
        self.most = _share(settings.SVC_API_MAX_CONNECTIONS)
        self.most_of_one = _share(settings.SVC_API_MAX_CONNECTIONS_PER_ADDRESS)
        self.head_seconds = settings.SVC_API_HEADER_TIMEOUT_MS / 1000
        self.body_seconds = settings.SVC_API_BODY_TIMEOUT_MS / 1000
        self.write_seconds = settings.SVC_API_WRITE_TIMEOUT_MS / 1000
        self.closed: Counter[str] = Counter()
        self._most_kept_threads = max(1, threads // 2)
        self._reported_at = 0.0

    def crowded(self, new: Connection, present: Collection[Connection]) -> str:
        """Return the address that has to close one before ``new`` is admitted; empty: none."""
        counts = Counter(each.address for each in present)
        shared = is_trusted_proxy(new.client[0])  # many people's connections
        if counts[new.address] >= self.most_of_one and not shared:
            return new.address
        if len(present) >= self.most:
            return counts.most_common(1)[0][0]
        return ""

    def longest_waiting(self, among: Collection[Connection]) -> Connection | None:
        """Choose the one that nobody is sending to and that has waited longest; None: none."""
        waiting = [each for each in among if each.phase not in (Phase.SERVING, Phase.STREAMING)]
        if not waiting:
            return None
        self.closed["evicted"] += 1
        return min(waiting, key=lambda each: (each.phase.value, each.since))

    def is_slow_reader(self, connection: Connection, now: float) -> bool:
        """Tell whether an answer has waited for its reader for longer than it may."""
        outgoing = connection.sock
        return bool(outgoing.pending) and now - outgoing.progressed_at > self.write_seconds

    def keeping_threads(self, present: Collection[Connection], now: float) -> list[Connection]:
        """Choose slow readers until at most half of the threads wait for one."""
        waiting = [each for each in present if each.sock.waiting]
        waiting.sort(key=lambda each: each.sock.progressed_at)
        longest = waiting[: max(0, len(waiting) - self._most_kept_threads)]
        chosen = [each for each in longest if now - each.sock.progressed_at > _STALLED_SECONDS]
        self.closed["slow_reader"] += len(chosen)
        return chosen

    def keeping_memory(self, present: Collection[Connection]) -> list[Connection]:
        """Choose the largest until the others keep no more memory than they may together."""
        held = sum(connection.held for connection in present)
        others = [each for each in present if each.phase is not Phase.SERVING]
        others.sort(key=lambda each: each.held)
        chosen = []
        while held > _HELD_BYTES and others:
            largest = others.pop()
            held -= largest.held
            chosen.append(largest)
        self.closed["too_large"] += len(chosen)
        return chosen

    def report(self, now: float) -> None:
        """Log how many were closed since the last time, every ten seconds at most."""
        reasons = {reason: count for reason, count in self.closed.items() if count}
        if reasons and now - self._reported_at >= _REPORT_SECONDS:
            log.warning("connections_closed_by_limits", reasons=reasons)
            self.closed.clear()
            self._reported_at = now


def _share(limit: int) -> int:
    """Return what one of the processes has of a limit of all of them."""
    return max(1, -(-limit // settings.SVC_API_WORKERS))
