"""What has a build worker fulfil intents: it looks for them, claims them, and waits out trouble."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections

from builds.fulfilment import Fulfiller, PutOffError
from builds.models import Intent, IntentLostError, Worker
from controlplane.errors import JobError

log = structlog.get_logger(__name__)

RETRY = timedelta(seconds=1)
MAX_RETRY = timedelta(seconds=15)
INTERNAL = "internal-error"


class Attendant:
    """Fulfils the intents that this worker claims. :meth:`attend` may run on several threads.

    ``may_judge`` tells whether an old heartbeat means a dead worker just now.
    """

    def __init__(
        self,
        worker_id: str,
        fulfiller: Fulfiller,
        *,
        stale: timedelta,
        may_judge: Callable[[], bool],
    ) -> None:
        self._worker_id = worker_id
        self._fulfiller = fulfiller
        self._stale = stale
        self._may_judge = may_judge
        self._lock = threading.Lock()
        self._at_work = 0
        self._uncertain = False

    def attend(self, stopped: threading.Event, number: int = 1) -> None:
        """Fulfil one intent after the other, until none can be claimed or ``stopped`` is set.

        The thread of a ``number`` looks for one only while so many others may be at work that it
        is needed: otherwise the first one looks alone.
        """
        while not stopped.is_set() and number <= self._at_work + 1:
            try:
                intent = self._claim()
                if intent is None:
                    return
                with structlog.contextvars.bound_contextvars(
                    workspace_id=str(intent.workspace_id), intent=intent.kind
                ):
                    self._fulfil(intent, stopped)
            except (DatabaseError, InterfaceError):
                # A claim may have been committed although its answer was lost.
                self._uncertain = True
                close_old_connections()
                raise

    def _claim(self) -> Intent | None:
        # One thread at a time, so that of every claim in our name it is known who works at it.
        with self._lock:
            if self._uncertain and self._at_work == 0:
                Intent.objects.give_back_strays(self._worker_id)
                self._uncertain = False
            alive = Worker.objects.alive(stale=self._stale) if self._may_judge() else None
            lease = self._fulfiller.lease
            intent = Intent.objects.claim_next(self._worker_id, alive=alive, lease=lease)
            self._at_work += intent is not None
        return intent

    def _fulfil(self, intent: Intent, stopped: threading.Event) -> None:
        try:
            self._fulfiller.fulfil(intent, stopped)
            log.info("intent_fulfilled")
        except IntentLostError:
            log.warning("intent_lost")
        except PutOffError as exc:
            self._put_off(intent, exc.after, exc.code, exc.message)
        except JobError as exc:
            log.warning("intent_put_off", code=exc.code)
            self._put_off(intent, _pause(intent), exc.code, exc.message)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("intent_put_off", code=INTERNAL)
            self._put_off(
                intent, MAX_RETRY, INTERNAL, "Something went wrong on our side; it is tried again."
            )
        finally:
            with self._lock:
                self._at_work -= 1

    def _put_off(self, intent: Intent, after: timedelta, code: str, message: str) -> None:
        Intent.objects.put_off(intent.fence, after=after, code=code, message=message)


def _pause(intent: Intent) -> timedelta:
    """Return how long to wait before the next try, longer each time."""
    factor: int = 2 ** min(intent.claim_count - 1, 10)
    return min(RETRY * factor, MAX_RETRY)
