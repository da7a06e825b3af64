"""What is costly to make is kept for the next one, and for a while only."""

from __future__ import annotations

import threading

import pytest

from controlplane.work.spares import Spares
from tests.support.waiting import LONG_WAIT


def spares(*, seconds: float = LONG_WAIT, most: int = 2) -> tuple[Spares[str], list[str]]:
    disposed: list[str] = []
    return Spares(seconds=seconds, most=most, dispose=disposed.append), disposed


def test_a_spare_serves_one_who_asks_for_its_key() -> None:
    kept, disposed = spares()
    kept.give("a", "first")
    assert kept.take("b") is None
    assert kept.take("a") == "first"
    assert kept.take("a") is None
    assert disposed == []


def test_the_spare_that_was_given_last_serves_first() -> None:
    kept, _ = spares()
    kept.give("a", "first")
    kept.give("a", "second")
    assert kept.take("a") == "second"
    assert kept.take("a") == "first"


def test_what_is_given_beyond_the_limit_is_disposed_of_at_once() -> None:
    kept, disposed = spares(most=1)
    kept.give("a", "first")
    kept.give("a", "second")
    assert disposed == ["second"]
    assert kept.take("a") == "first"
    kept.give("a", "third")
    assert kept.take("a") == "third"


def test_a_spare_that_nobody_takes_in_time_is_disposed_of() -> None:
    gone = threading.Event()
    kept: Spares[str] = Spares(seconds=0.01, most=1, dispose=lambda _: gone.set())
    kept.give("a", "first")
    assert gone.wait(LONG_WAIT)
    assert kept.take("a") is None


def test_a_spare_that_was_taken_is_left_alone_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Timer, "start", lambda timer: timers.append(timer))
    timers: list[threading.Timer] = []
    kept, disposed = spares()
    kept.give("a", "first")
    assert kept.take("a") == "first"
    [timer] = timers
    timer.function()  # as if it had been too late to cancel it
    assert disposed == []
    assert timer.finished.is_set()


def test_without_a_thread_for_its_end_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    kept, disposed = spares()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Timer, "start", refuse)
        kept.give("a", "first")
    assert disposed == ["first"]
    assert kept.take("a") is None
