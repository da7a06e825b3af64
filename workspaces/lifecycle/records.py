"""What a workspace's transitions need of the records of what runs in it.

The runs app keeps these records and registers itself here when it is loaded: workspaces know that
what runs in them is recorded, not how.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from controlplane.owner_limits import OwnerLimit
from workspaces.models import Attempt
from workspaces.runtimes.base import FileReader, RuntimeAdapter


class Records(Protocol):
    """The records of attempts, as ``runs.boot_runs`` keeps them."""

    @property
    def size_limit(self) -> OwnerLimit:
        """How much room the records of one owner may take."""

    def create_boot_run(self, attempt: Attempt) -> object:
        """Create the run that records an attempt's build and boot, in its transaction."""

    def end_boot_run(self, attempt: Attempt, *, failed: bool, code: str, message: str) -> bool:
        """End the boot run of an attempt that failed or was cancelled; False when it had ended."""

    def is_being_recorded(self, attempt: Attempt) -> bool:
        """Whether a source of the boot run's record has begun and not been closed yet."""

    def request_cancellation(self, attempt: Attempt) -> None:
        """Mark everything that runs in the workspace as to be cancelled."""

    def cancel_commands(
        self, attempt: Attempt, adapter: RuntimeAdapter, *, grace: timedelta
    ) -> None:
        """Tell the commands that run in the workspace to exit, so that they count as cancelled.

        Best effort and bounded: a workspace that does not answer cannot keep itself from being
        stopped, however many commands there are.
        """

    def collect(self, adapter: RuntimeAdapter, run_id: uuid.UUID) -> None:
        """Store what a container still holds of records; raise ``LaunchError`` if unreadable."""

    def collect_from(self, run_id: uuid.UUID, read: FileReader) -> None:
        """Store what a container that is about to be removed holds of records; raise nothing."""


class _Registered:
    make: Callable[[], Records] | None = None
    records: Records | None = None


def register(make: Callable[[], Records]) -> None:
    """Have ``make`` give the records of this process, when they are first asked for.

    Called once, when the app that has them is loaded.
    """
    _Registered.make = make


def records() -> Records:
    """Return the records of this process."""
    if _Registered.records is None:
        assert _Registered.make is not None, "the runs app is not loaded"
        _Registered.records = _Registered.make()
    return _Registered.records
