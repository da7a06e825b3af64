"""What a session that nobody uses does not do."""

from __future__ import annotations

import pytest

from tests.runs.agent.test_in_container import Machine, engine, executed, machine, settled

__all__ = ["engine", "machine"]

pytestmark = pytest.mark.docker

# In a container of its own, where nobody else starts processes.
OBSERVED = """
import subprocess, sys, time
sys.path.insert(0, "/usr/lib/svc/agent")
from agent.observe.processes import Processes
from agent.record.unrecorded import Unrecorded

def rest_after_the_next_look():
    until = processes.due
    time.sleep(max(0.0, until - time.monotonic()))
    while processes.due == until:
        processes.tick()
    return processes.due - until

def until_it_rests():
    for _ in range(30):
        if rest_after_the_next_look() >= 5:
            return
    raise SystemExit("it never rests")

processes = Processes(Unrecorded(), "a run", recorded=False)
processes.prepare()
leader = subprocess.Popen(["sleep", "infinity"], start_new_session=True)
processes.leader_started(leader.pid, 1)
processes.pace(True)
until_it_rests()
print("rests")

more = subprocess.Popen(["setsid", "sleep", "infinity"], env={"SVC_RUN_ID": "a run"})
while more.pid not in processes.pids():
    rest_after_the_next_look()
print("sees what was started meanwhile")

until_it_rests()
processes.pace(False)
assert processes.due <= time.monotonic() + 0.25
print("looks at once when something happens")
leader.kill()
more.kill()
"""


def test_processes_are_looked_at_every_five_seconds_while_none_is_started(machine: Machine) -> None:
    container = machine.start()
    assert settled(container)["phase"] == "ready"

    code, said = executed(container, ["/usr/bin/python3", "-c", OBSERVED])

    assert code == 0, said
    assert said.decode().splitlines() == [
        "rests",
        "sees what was started meanwhile",
        "looks at once when something happens",
    ]
