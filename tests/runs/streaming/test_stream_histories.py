"""Readers that lose their connections over and over see every event once, in order."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from runs.models import Run
from tests.runs.record_factory import Source, make_run
from tests.runs.streaming.stream_history import Reader, follow_all
from tests.stack.api_process import api_process
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

ROOM = {"SVC_API_MAX_CONNECTIONS": "2000", "SVC_API_MAX_CONNECTIONS_PER_ADDRESS": "2000"}


class Writer:
    """Writes runs bit by bit, each of so many events, in turn."""

    def __init__(self, runs: list[Run], events: int, random: Random) -> None:
        self._events = events
        self._random = random
        self._going = [self._begin(run) for run in runs]

    def __call__(self) -> bool:
        """Write the next events of some run; False when all have ended."""
        if not self._going:
            return False
        source = self._random.choice(self._going)
        left = self._events - source.sequence
        for _ in range(min(left - 2, self._random.randint(1, 400))):
            source.output(1, b"%d," % source.sequence)
        if self._events - source.sequence == 2:
            source.exited(1)
            source.sealed()
            self._going.remove(source)
        source.append()
        return True

    def _begin(self, run: Run) -> Source:
        source = Source(run)
        source.open()
        source.started()
        source.process()
        source.append()
        return source


def history(
    tmp_path: Path, *, readers: int, runs: int, events: int, drops: int, seconds: float
) -> None:
    """Check what so many readers see of so many runs, with so many drops of each reader."""
    random = Random(15)
    made = [make_run() for _ in range(runs)]
    with api_process(tmp_path / "api.log", SVC_API_WORKERS="2", **ROOM) as api:
        crowd = [
            Reader(
                api.port,
                f"/v1/runs/{made[number % runs].pk}/stream",
                random.sample(range(1, events - 1), drops),
                random,
            )
            for number in range(readers)
        ]
        dropped = follow_all(crowd, Writer(made, events, random), seconds=seconds)
        assert "stream_failed" not in api.told
    # Several places that are passed with one read are one drop.
    assert dropped > readers * drops / 3
    # The last number is that of the end itself.
    assert {reader.last for reader in crowd} == {events + 1}


def test_readers_that_are_dropped_see_every_event_once(tmp_path: Path) -> None:
    history(tmp_path, readers=60, runs=4, events=1_500, drops=5, seconds=LONG_WAIT)


@pytest.mark.slow
def test_200_readers_that_are_dropped_1000_times_see_each_of_100_000_events(tmp_path: Path) -> None:
    history(tmp_path, readers=200, runs=20, events=5_000, drops=16, seconds=2 * LONG_WAIT)
