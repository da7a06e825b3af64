"""Which clients have to go, because they take too much of a process."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.serving.client_limits import Limits


def slow(since: float) -> Any:
    """A client whose answer has kept a thread waiting since that time."""
    return SimpleNamespace(sock=SimpleNamespace(waiting=True, progressed_at=since))


@pytest.mark.parametrize(("readers", "cut_off"), [(1, 0), (3, 0), (4, 0), (5, 1), (8, 4)])
def test_slow_readers_are_cut_off_only_when_they_keep_more_than_half_of_the_threads(
    readers: int, cut_off: int
) -> None:
    now = time.monotonic()
    present = [slow(now - 10 + number) for number in range(readers)]
    chosen = Limits(threads=8).keeping_threads(present, now)
    assert chosen == present[:cut_off]
