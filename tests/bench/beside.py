"""What has to go on beside a measurement for its name to be true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.stack.worker_process import eventually


@contextmanager
def beside(running: Callable[[], set[str]], number: int, *, what: str) -> Iterator[None]:
    """Begin once so many run, and raise when one of them has ended before the body has.

    ``running`` returns the ids of those that run at that moment.
    """
    eventually(lambda: len(running()) == number, what=f"{number} {what} run")
    before = running()
    yield
    if ended := before - running():
        raise RuntimeError(f"{len(ended)} of {number} {what} ended while something was measured")
