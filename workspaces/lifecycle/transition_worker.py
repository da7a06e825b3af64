"""Claims transitions and carries them out, one after the other, on threads of the build worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from controlplane.errors import JobError
from controlplane.work.leases import LeaseLost
from controlplane.work.models import Heartbeat
from workspaces.lifecycle.teardown import RetryLater, TransitionExecutor
from workspaces.models import Transition

log = structlog.get_logger(__name__)

RETRY = timedelta(seconds=1)
MAX_RETRY = timedelta(seconds=15)
INTERNAL = "internal-error"


class TransitionWorker:
    """Carries out the transitions that it claims. :meth:`run` may be called on several threads.

    ``is_reliable`` tells whether an old heartbeat means a dead worker just now. ``engine`` is the
    engine that it looks after; without one it claims the transitions of all.
    """

    def __init__(
        self,
        worker_id: str,
        executor: TransitionExecutor,
        *,
        stale: timedelta,
        is_reliable: Callable[[], bool],
        engine: str = "",
    ) -> None:
        self._worker_id = worker_id
        self._executor = executor
        self._stale = stale
        self._is_reliable = is_reliable
        self._engine = engine
        self._lock = threading.Lock()
        self._busy = 0
        self._uncertain = False

    def run(self, stopped: threading.Event, number: int = 1) -> None:
        """Carry out transitions until none can be claimed or ``stopped`` is set.

        The thread of a ``number`` looks for one only while so many others are busy that it
        is needed: otherwise the first one looks alone.
        """
        while not stopped.is_set() and number <= self._busy + 1:
            try:
                transition = self._claim()
                if transition is None:
                    return
                with structlog.contextvars.bound_contextvars(
                    workspace_id=str(transition.workspace_id), transition=transition.kind
                ):
                    self._execute(transition, stopped)
            except (DatabaseError, InterfaceError):
                # A claim may have been committed although its answer was lost.
                self._uncertain = True
                close_old_connections()
                raise

    def _claim(self) -> Transition | None:
        # One thread at a time, so that of every claim in our name it is known who works on it.
        with self._lock:
            if self._uncertain and self._busy == 0:
                Transition.objects.release_strays(self._worker_id, (), older_than=timedelta())
                self._uncertain = False
            alive = Heartbeat.objects.alive(stale=self._stale) if self._is_reliable() else None
            lease = self._executor.lease
            transition = Transition.objects.claim_next(
                self._worker_id, alive=alive, lease=lease, engine=self._engine
            )
            self._busy += transition is not None
        return transition

    def _execute(self, transition: Transition, stopped: threading.Event) -> None:
        try:
            self._executor.execute(transition, stopped)
            log.info("transition_finished")
        except LeaseLost:
            log.warning("transition_lost")
        except RetryLater as exc:
            self._retry_later(transition, exc.after, exc.code, exc.message)
        except JobError as exc:
            log.warning("transition_delayed", code=exc.code)
            self._retry_later(transition, _pause(transition), exc.code, exc.message)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("transition_delayed", code=INTERNAL)
            self._retry_later(
                transition,
                MAX_RETRY,
                INTERNAL,
                "Something went wrong on our side; it will be retried.",
            )
        finally:
            with self._lock:
                self._busy -= 1

    def _retry_later(
        self, transition: Transition, after: timedelta, code: str, message: str
    ) -> None:
        Transition.objects.retry_later(transition.fence, after=after, code=code, message=message)


def _pause(transition: Transition) -> timedelta:
    """Return how long to wait before the next try, longer each time."""
    factor: int = 2 ** min(transition.claim_count - 1, 10)
    return min(RETRY * factor, MAX_RETRY)
