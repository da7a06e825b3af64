"""A time limit for every attempt of a test that is run again, as for its first one."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

_limit = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Begin the time of ``pytest-timeout`` anew, which sets its timer once for all attempts."""
    limit = item.stash.setdefault(_limit, signal.getitimer(signal.ITIMER_REAL)[0])
    signal.setitimer(signal.ITIMER_REAL, limit)
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """End it: a timer that goes off in the pause between two attempts would end the session."""
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
