"""Where memory runs out a program dies, and the agent lives to say so."""

from __future__ import annotations

import json

import pytest
from docker.models.containers import Container

from runs.agent.record.frames import Event, Kind, decode, frames
from tests.runs.agent.booted import eventually, step
from tests.runs.agent.test_in_container import (
    Machine,
    engine,
    executed,
    machine,
    run,
    settled,
    start_run,
)
from tests.support.waiting import LONG_WAIT

__all__ = ["engine", "machine"]

EAT = "python3 -c 'x = bytearray(400 << 20)'"


def score(container: Container, pid: int | str) -> int:
    return int(run(container, f"cat /proc/{pid}/oom_score_adj"))


def test_programs_of_the_workspace_die_before_the_agent(machine: Machine) -> None:
    container = machine.start(setup=[step("cat /proc/self/oom_score_adj > /tmp/step")])
    settled(container)
    own = score(container, 1)
    expected = min(own + 500, 1000)
    assert int(run(container, "cat /tmp/step")) == expected
    run_id = start_run(container, "cat /proc/self/oom_score_adj > /tmp/run")
    wait_for_end(container, run_id)
    assert int(run(container, "cat /tmp/run")) == expected
    assert score(container, 1) == own


@pytest.mark.parametrize("script", [f"exec {EAT}", f"{EAT}; exit $?"])
def test_a_run_that_the_kernel_ends_for_want_of_memory_is_blamed_on_that(
    machine: Machine, script: str
) -> None:
    container = machine.start(memory="96m")
    settled(container)
    run_id = start_run(container, script)
    wait_for_end(container, run_id)
    (exited,) = [
        json.loads(event.meta)
        for event in events_of(container, run_id)
        if event.kind == Kind.PROCESS_EXITED
    ]
    assert exited["reason"] == "outOfMemory"
    assert (exited["signal"], exited["code"]) in (("SIGKILL", None), (None, 137))


def test_a_run_that_is_killed_by_somebody_is_not_blamed_on_memory(machine: Machine) -> None:
    container = machine.start()
    settled(container)
    run_id = start_run(container, "kill -KILL $$")
    wait_for_end(container, run_id)
    events = events_of(container, run_id)
    (exited,) = [json.loads(each.meta) for each in events if each.kind == Kind.PROCESS_EXITED]
    assert exited["reason"] == "signaled"


def events_of(container: Container, run_id: str) -> list[Event]:
    """What the spool of a run holds now; an archive of files that grow would be damaged."""
    code, content = executed(container, ["sh", "-c", f"cat /var/lib/svc/runs/{run_id}/*.seg"])
    assert code == 0, content
    return [decode(each) for each in frames(content)]


def wait_for_end(container: Container, run_id: str) -> None:
    def ended() -> bool:
        return any(each.kind == Kind.RECORD_SEALED for each in events_of(container, run_id))

    eventually(ended, within=LONG_WAIT)
