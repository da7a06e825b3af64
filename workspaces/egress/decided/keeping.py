"""What the proxy needs of the records: decisions are stored there once, in order, until their end.

The runs app keeps the records and registers itself here when it is loaded, as it does in
``workspaces.lifecycle.records``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:  # most processes load this module, and store no decisions
    from workspaces.egress.decided.sums import Line


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass has to store; ``number`` rises within a journal.

    ``missing`` tells that there was more, of which nobody knows anything.
    """

    attempt_id: UUID
    journal: str
    number: int
    lines: Sequence[Line]
    missing: bool = False


class Records(Protocol):
    """The records of boot runs, as ``runs.record.egress_decisions`` keeps them."""

    def store(self, decided: Pass, *, patient: bool) -> bool:
        """Store a pass unless it is stored already; False: the record has ended, or is not there.

        Raises database errors: then it is to be tried again, however often. A record that somebody
        else writes to is waited for a moment only, or two seconds where it is ``patient``.
        """

    def is_open(self, attempt_id: UUID) -> bool:
        """Whether decisions can still be stored; waits for whoever is about to end the record."""


class _Registered:
    make: Callable[[], Records] | None = None


def register(make: Callable[[], Records]) -> None:
    """Have ``make`` give the records of this process, when they are first asked for.

    Called once, when the app that has them is loaded.
    """
    _Registered.make = make


def records() -> Records:
    """Return the records of this process."""
    assert _Registered.make is not None, "the runs app is not loaded"
    return _Registered.make()
