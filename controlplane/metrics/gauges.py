"""What apps measure when somebody asks; every process registers it, few are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that was measured just now, by the values of its labels."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    values: Mapping[tuple[str, ...], float] = field(default_factory=dict)


def single(name: str, help_: str, value: float) -> Gauge:
    """Return a gauge without labels."""
    return Gauge(name, help_, (), {(): value})


measured: dict[str, Callable[..., list[Gauge]]] = {}
"""What apps measure when they are asked, by the part of the page; see :func:`register`."""


def register(part: str, measure: Callable[..., list[Gauge]]) -> None:
    """Add gauges to the page; ``measure`` takes ``stale``, as heartbeats do."""
    measured[part] = measure
