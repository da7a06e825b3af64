"""UUIDv7: rising, also when the clock is not."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from controlplane.database import ids


def test_an_id_is_a_uuid_of_version_seven_and_holds_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = ids.uuid7()
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000 + 10


def test_ids_made_one_after_the_other_rise() -> None:
    made = [ids.uuid7() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert [str(one) for one in made] == sorted(str(one) for one in made)


def test_ids_of_many_threads_are_all_different() -> None:
    made: list[uuid.UUID] = []

    def make() -> None:
        made.extend([ids.uuid7() for _ in range(2_000)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16_000


def test_ids_rise_although_the_clock_jumps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    first = ids.uuid7()
    monkeypatch.setattr("time.time_ns", lambda: now - 3_600 * 10**9)
    made = [first, *(ids.uuid7() for _ in range(10_000))]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
