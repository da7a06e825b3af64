"""A record that its agent cannot read at some moments, with long connections between them."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field

import pytest

from runs.models import Run
from tests.runs.executable import boot_run
from tests.runs.recording.scripted_agent import KEEPALIVE, ScriptedAgent, Tailed
from tests.runs.recording.whole_runs import assert_whole, record, whole
from workspaces.models import RuntimeInstance

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Clock:
    """Time as a test has it pass."""

    now: float = 1000.0

    def monotonic(self) -> float:
        """Return the seconds that a recorder goes by."""
        return self.now

    def time(self) -> float:
        """Return the time of day, which stands still."""
        return self.now


@dataclass(slots=True)
class QuietAgent(ScriptedAgent):
    """One whose workspace says nothing for a while. Each number is a tail, by its keepalives."""

    clock: Clock = field(default_factory=Clock)
    tails: list[int] = field(default_factory=list)

    def _tailed(self, run: str, first: str) -> Tailed:
        if not self.tails:
            return super(QuietAgent, self)._tailed(run, first)
        keepalives = self.tails.pop(0)
        if not keepalives:
            return Tailed(b"", 1)
        hello = {"spoolId": self.spools[uuid.UUID(run)].spool_id, "first": 1, "last": 0}
        sent = json.dumps({**hello, "sealed": False}).encode() + b"\n"
        return Quiet(sent, None, keepalives=keepalives, clock=self.clock)


class Quiet(Tailed):
    """Gives out its greeting, and then keepalives, one in five seconds."""

    def __init__(self, sent: bytes, code: None, *, keepalives: int, clock: Clock) -> None:
        super().__init__(sent, code)
        self._keepalives = keepalives
        self._clock = clock

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Return the next piece; the end once there is none."""
        if sent := super().read(timeout, wake=wake):
            return sent
        self._clock.now += 5.0
        self._keepalives -= 1
        return KEEPALIVE if self._keepalives >= 0 else b""


@pytest.mark.parametrize(("tails", "is_whole"), [([0, 1000, 0], True), ([0, 1, 1, 1, 0], False)])
def test_a_spool_that_could_not_be_read_long_ago_is_not_given_up_when_it_cannot_again(
    tails: list[int], is_whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = QuietAgent(tails=tails)
    for module in ("recorder", "unheard_ends"):
        monkeypatch.setattr(f"runs.recording.{module}.time", agent.clock)
    monkeypatch.setattr("runs.recording.recorder.RETRY_SECONDS", 0.01)
    run = boot_run(RuntimeInstance.Status.RUNNING)
    agent.spools[run.pk] = whole(run)

    run = record(run, agent)

    if is_whole:
        assert_whole(run)
    else:
        assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
