"""Waiting for the disk beside the loop: the one thing of a spool that takes as long as it takes."""

from __future__ import annotations

import _thread
import os
from typing import Optional

from ..process.aside import aside


class BackgroundSync:
    """One fdatasync at a time, each in a thread of its own that ends with it.

    A failure is kept until somebody asks: the kernel tells it only once. Processes may be forked
    meanwhile, as the thread holds nothing that a child needs.
    """

    def __init__(self) -> None:
        self._under_way = _thread.allocate_lock()
        self._failure: Optional[OSError] = None

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self._under_way.locked()

    def begin(self, fd: int) -> None:
        """Begin one, when none is running; without room for a thread it is done at once.

        The descriptor stays open until `end`.
        """
        self._under_way.acquire()
        aside(self._sync, fd)

    def end(self) -> None:
        """Wait until none is running; raises the OSError of one that has failed."""
        with self._under_way:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _sync(self, fd: int) -> None:
        try:
            os.fdatasync(fd)
        except OSError as error:
            self._failure = error
        finally:
            self._under_way.release()
