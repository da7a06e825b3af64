"""What workers do again and again beside their queues: whatever goes wrong, and counted."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane.errors import JobError
from controlplane.metrics.families import SWEEPS
from controlplane.patience import database_trouble

log = structlog.get_logger(__name__)


def guarded(name: str, duty: Callable[[], object], *, worker: str) -> None:
    """Run one duty of a ``worker`` once; the next round tries again whatever went wrong."""
    outcome = "failed"
    try:
        duty()
        outcome = "done"
    except (DatabaseError, InterfaceError, JobError) as exc:
        reason = exc.message if isinstance(exc, JobError) else database_trouble(exc)
        log.warning("duty_failed", duty=name, reason=reason)
        close_old_connections()
    except Exception:
        log.exception("duty_failed", duty=name)
    finally:
        SWEEPS.count(worker=worker, duty=name, outcome=outcome)
