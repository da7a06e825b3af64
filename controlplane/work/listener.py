"""One thread of a process that hears the announcements of a channel, for all who wait in it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog
from django.db import DatabaseError, InterfaceError, connection

from controlplane.work.notifications import Heard, listen_to
from controlplane.work.stopping import StopEvent

log = structlog.get_logger(__name__)

AGAIN_SECONDS = 1.0


class Listener:
    """Calls ``told`` with what each announcement says, from the first :meth:`start` on.

    Announcements are hints: those made while the database is away are never heard. ``resumed`` is
    called whenever it begins to listen, so that whoever waits can look.
    """

    def __init__(
        self, channel: str, told: Callable[[str], object], resumed: Callable[[], object]
    ) -> None:
        self._channel = channel
        self._told = told
        self._resumed = resumed
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = StopEvent()

    def start(self) -> None:
        """Listen, on a thread that lives until :meth:`stop`; does nothing when it does."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stopped = StopEvent()
                self._thread = threading.Thread(
                    target=self._listen_on,
                    args=[self._stopped],
                    name=f"listener {self._channel}",
                    daemon=True,
                )
                self._thread.start()

    def stop(self) -> None:
        """Listen no more, and give the connection back."""
        with self._lock:
            if self._thread is not None:
                self._stopped.set()
                self._thread.join()
                self._thread = None

    def _heard(self, news: Heard | None) -> None:
        if news is None:
            self._resumed()
            return
        for _, payload in news:
            self._told(payload)

    def _listen_on(self, stopped: StopEvent) -> None:
        while not stopped.is_set():
            try:
                listen_to([self._channel], self._heard, stopped)
            except (DatabaseError, InterfaceError) as exc:
                log.warning("listener_lost", channel=self._channel, reason=type(exc).__name__)
            except Exception:
                log.exception("listener_failed", channel=self._channel)
            finally:
                connection.close()
            stopped.wait(AGAIN_SECONDS)
