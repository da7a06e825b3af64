"""What this process has counted and not yet written to the database."""

from __future__ import annotations

import threading
from collections.abc import Mapping

Key = tuple[str, tuple[str, ...], str]
"""Family, values of its labels, part (see ``metrics.models.Count``)."""

_lock = threading.Lock()
_pending: dict[Key, float] = {}


def add(family: str, labels: tuple[str, ...], part: str, amount: float) -> None:
    """Add to one number."""
    key = (family, labels, part)
    with _lock:
        _pending[key] = _pending.get(key, 0.0) + amount


def take() -> dict[Key, float]:
    """Return what was counted, and begin again at nothing."""
    global _pending
    with _lock:
        taken, _pending = _pending, {}
    return taken


def give_back(taken: Mapping[Key, float]) -> None:
    """Count again what could not be written."""
    for (family, labels, part), amount in taken.items():
        add(family, labels, part, amount)


def pending() -> dict[Key, float]:
    """Return what was counted, and keep it."""
    with _lock:
        return dict(_pending)
