"""Who has to wait, and who is too many. Nothing here knows of sockets; the time is told."""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

MAX_DELAY = 5.0
MAX_ADDRESSES = 10_000
"""Of so many addresses failures are remembered; whoever has failed longest ago is forgotten."""

T = TypeVar("T", bound=Hashable)


class FailedLogins:
    """How long an address waits for the answer to a key that opens nothing.

    ``allowed`` failures within ``window`` seconds cost nothing, each further one a second more, at
    most ``MAX_DELAY``. Keys that are known never wait: to be asked after a failure only.
    """

    def __init__(self, allowed: int, window: float) -> None:
        self._allowed = allowed
        self._window = window
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def delay_after_failure(self, address: str, now: float) -> float:
        """Count a failure; return for how many seconds its answer is held back."""
        place = _network(address)
        most = self._allowed + int(MAX_DELAY)
        failures = self._failures.setdefault(place, deque(maxlen=most))
        self._failures.move_to_end(place)
        failures.append(now)
        while failures[0] <= now - self._window:
            failures.popleft()
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return min(max(0.0, float(len(failures) - self._allowed)), MAX_DELAY)


def _network(address: str) -> str:
    """Return what belongs to one party: an IPv4 address, and of IPv6 the network of 64 bits."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.IPv6Network((found, 64), strict=False))
    return str(found)


class Waiting(Generic[T]):
    """Those who have not logged in yet. When there are too many the one longest here goes.

    So a flood of silent connections keeps nobody out: whoever logs in at once does so.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: OrderedDict[T, None] = OrderedDict()

    def add(self, one: T) -> T | None:
        """Let somebody wait; return who has to go instead."""
        self._waiting[one] = None
        if len(self._waiting) <= self._limit:
            return None
        oldest, _ = self._waiting.popitem(last=False)
        return oldest

    def remove(self, one: T) -> None:
        """Know that somebody waits no longer; no matter if that is known."""
        self._waiting.pop(one, None)

    def __len__(self) -> int:
        return len(self._waiting)


class Slots:
    """How many connections there may be: ``limit`` together, ``per_principal`` of each owner."""

    def __init__(self, limit: int, per_principal: int) -> None:
        self._limit = limit
        self._per_principal = per_principal
        self._taken: Counter[str] = Counter()

    def acquire(self, principal: str) -> str:
        """Acquire a slot; return why none is free, or nothing when it is acquired."""
        if self._taken.total() >= self._limit:
            return f"the gateway is full: it takes {self._limit} connections; try again later"
        if self._taken[principal] >= self._per_principal:
            return (
                f"you have {self._per_principal} connections already, which is as many as one "
                "owner may have; close one first"
            )
        self._taken[principal] += 1
        return ""

    def release(self, principal: str) -> None:
        """Release a slot."""
        self._taken[principal] -= 1
        if self._taken[principal] <= 0:
            del self._taken[principal]

    def __len__(self) -> int:
        return self._taken.total()
