"""Numbers that no agent answers, but a workspace that has forged its agent does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from runs.input.later import give_input
from runs.models import Run, RunInput
from runs.record import store
from runs.recording import run_sweeper as sweeper
from runs.recording.control import RunControl
from runs.recording.input_channel import InputChannel
from runs.recording.thread_connections import Connections, Database
from tests.runs.executable import make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent
from tests.runs.recording.whole_runs import whole
from workspaces.runtimes.base import AgentAnswer

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(slots=True)
class ForgedAgent(ScriptedAgent):
    """An engine whose workspaces each tell what is written here, whatever they are asked."""

    told: dict[uuid.UUID, object] = field(default_factory=dict)

    def call_agent(
        self, run_id: uuid.UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
    ) -> AgentAnswer:
        """Answer with what was forged."""
        return AgentAnswer(0, json.dumps(self.told[run_id]).encode(), b"")


def leftover() -> Run:
    """Return a run that has ended, and whose spool nobody has acknowledged."""
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    return run


@pytest.mark.parametrize("last", [2**64, -1, float("inf")])
def test_a_number_that_no_event_has_keeps_no_other_workspace_from_being_looked_at(
    last: float,
) -> None:
    forged, honest = leftover(), leftover()
    agent = ForgedAgent(spools={run.pk: whole(run) for run in (forged, honest)})
    for run, number in ((forged, last), (honest, 8)):
        assert run.attempt is not None
        spool = {"runId": str(run.pk), "sealed": True, "lastSequence": number}
        agent.told[run.attempt.run_id] = [spool]

    assert sweeper.Leftovers(agent, committed=timedelta()).acknowledge() == 1
    assert set(agent.spools) == {forged.pk}


def test_a_position_that_no_input_has_is_asked_for_again_later() -> None:
    run = make_executable(command={"executable": "cat", "args": [], "moreInput": True})
    assert run.attempt is not None
    give_input(run, {"stdin": "typed"})
    agent = ForgedAgent(told={run.attempt.run_id: {"state": "taken", "position": float("inf")}})
    control = RunControl()
    database = Database(Connections(1), control.stopped)
    channel = InputChannel(run, control, agent, database)

    channel.hand_over()

    assert channel.seconds_left(0.0) < float("inf")
    assert RunInput.objects.filter(run=run).exists()
    database.leave()
