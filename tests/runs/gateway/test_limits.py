"""Who has to wait, and who is too many."""

from __future__ import annotations

import pytest

from runs.gateway.limits import MAX_ADDRESSES, FailedLogins, Slots, Waiting
from runs.gateway.texts import MAX_LINE, one_line


def test_failures_cost_more_and_more_but_never_much() -> None:
    failures = FailedLogins(3, 60)
    delays = [failures.delay_after_failure("192.0.2.1", now) for now in range(12)]
    assert delays == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5, 5]


def test_failures_are_forgotten_after_the_window() -> None:
    failures = FailedLogins(1, 60)
    assert [failures.delay_after_failure("192.0.2.1", now) for now in (0, 1, 61.5)] == [0, 1, 0]


def test_addresses_are_counted_apart() -> None:
    failures = FailedLogins(1, 60)
    assert failures.delay_after_failure("192.0.2.1", 0) == 0
    assert failures.delay_after_failure("192.0.2.2", 0) == 0
    assert failures.delay_after_failure("::ffff:192.0.2.1", 0) == 1


def test_one_ipv6_network_is_one_party() -> None:
    failures = FailedLogins(1, 60)
    assert failures.delay_after_failure("2001:db8::1", 0) == 0
    assert failures.delay_after_failure("2001:db8::2%eth0", 0) == 1
    assert failures.delay_after_failure("2001:db8:0:1::1", 0) == 0


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    failures = FailedLogins(1, 60)
    for number in range(MAX_ADDRESSES + 1):
        failures.delay_after_failure(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0)
    assert failures.delay_after_failure("10.0.0.0", 0) == 0  # forgotten
    assert failures.delay_after_failure("10.0.0.5", 0) == 1


def test_whoever_has_waited_longest_goes_when_there_are_too_many() -> None:
    waiting: Waiting[str] = Waiting(2)
    assert [waiting.add(name) for name in "abc"] == [None, None, "a"]
    waiting.remove("b")
    waiting.remove("a")
    assert [waiting.add(name) for name in "de"] == [None, "c"]
    assert len(waiting) == 2


def test_places_are_bounded_together_and_for_each_owner() -> None:
    slots = Slots(3, 2)
    assert [slots.acquire("a"), slots.acquire("a")] == ["", ""]
    assert "you have 2 connections already" in slots.acquire("a")
    assert slots.acquire("b") == ""
    assert "takes 3 connections" in slots.acquire("c")
    slots.release("a")
    assert slots.acquire("c") == ""
    assert len(slots) == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\nb\r\x1b[31m\0", r"a\nb\r\x1b[31m\x00"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("“Grüße”…", r'"Gr\xfc\xdfe"...'),
        ("\udcff", r"\udcff"),
    ],
)
def test_nothing_that_is_shown_moves_a_terminal(text: str, shown: str) -> None:
    assert one_line(text) == shown


def test_what_is_shown_fits_a_line() -> None:
    assert len(one_line("ü" * 10_000).encode()) <= MAX_LINE
    assert one_line("x" * MAX_LINE) == "x" * MAX_LINE
