"""The recorder and an agent that fails at will: nothing twice, nothing lost, always an end."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest

from runs.input.sealed import StartInput, seal_input
from runs.models import Run, RunHead, RunLoss
from runs.record import store
from runs.recording.control import RunControl
from runs.recording.recorder import Recorder
from tests.runs.executable import claim, make_executable
from tests.runs.recording.scripted_agent import ScriptedAgent
from tests.runs.recording.whole_runs import (
    AWAY,
    LIMITS,
    assert_whole,
    early_close,
    output,
    record,
    whole,
)
from workspaces.runtimes.base import AgentAnswer

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_run_is_executed_recorded_and_acknowledged() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})

    run = record(run, agent)

    assert run.status == Run.Status.COMPLETED
    assert run.exit_code == 0
    assert (run.worker_id, run.lease_expires_at) == ("", None)
    assert_whole(run)
    assert agent.spools == {}
    assert agent.calls == [("exec", "--then", "tail")]


def test_the_agent_is_told_everything_about_the_run() -> None:
    command = {"executable": "sh", "args": ["-c", "cat"], "cwd": "sub"}
    run = make_executable(command=command, time_limit_ms=5000)
    given = StartInput({"A": "b"}, b"given")
    Run.objects.filter(pk=run.pk).update(sealed_input=seal_input(given, run_id=run.pk))
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})

    record(run, agent)

    assert agent.specs == [
        {
            "version": 1,
            "runId": str(run.pk),
            "argv": ["sh", "-c", "cat"],
            "cwd": "sub",
            "env": {"A": "b"},
            "stdin": "Z2l2ZW4=",
            "timeSeconds": 5.0,
            "graceSeconds": 1.0,
            "secrets": [],
            "record": {
                "policy": "block",
                "input": "masked",
                "spoolBytes": 1 << 20,
                "segmentBytes": 1 << 16,
                "files": True,
                "network": True,
                "processes": True,
                "patchBytes": 1000,
                "maxFiles": 10,
            },
        }
    ]


def test_a_run_that_a_dead_worker_has_started_is_recorded_and_not_started_again() -> None:
    run = claim(make_executable(), lease=timedelta(seconds=-1))
    agent = ScriptedAgent(spools={run.pk: whole(run)})
    spool = agent.spools[run.pk]
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:3])

    assert_whole(record(run, agent))
    assert [call for call in agent.calls if call[0] == "exec"] == []
    assert agent.calls == [("tail", str(run.pk), "--from", "4")]


@pytest.mark.parametrize("place", [0, 10, 200, 300, 900, 5000])
def test_a_connection_cut_anywhere_loses_and_repeats_nothing(place: int) -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, damage=[(place, None)], piece=97)

    assert_whole(record(run, agent))


@pytest.mark.parametrize("place", [150, 300, 900, 5000])
def test_bytes_damaged_on_the_way_are_asked_for_again(place: int) -> None:
    run = make_executable()
    agent = ScriptedAgent(
        to_execute={run.pk: whole(run)}, damage=[(place, b"\xff"), (place, b"\xfe")]
    )

    assert_whole(record(run, agent))


def test_a_record_that_is_damaged_for_good_ends_with_what_could_be_read() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, damage=[(1200, b"\xff")] * 1000)

    run = record(run, agent)

    assert run.status == Run.Status.FAILED
    assert run.error_code == "record-lost"
    assert output(run) == b"first\n"
    assert early_close(run) == RunHead.objects.get(pk=run.number).last_sequence


def test_what_came_with_the_first_events_before_one_that_is_refused_is_stored() -> None:
    run = make_executable()
    spool = whole(run)
    spool.contents[2:] = [b"no event"]
    agent = ScriptedAgent(to_execute={run.pk: spool})

    run = record(run, agent)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert RunHead.objects.get(pk=run.number).event_count == 3  # and the end


def test_the_spool_of_a_new_run_is_known_though_its_connection_ends_before_its_first_event() -> (
    None
):
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, damage=[(20, None)])

    assert_whole(record(run, agent))
    assert [call[0] for call in agent.calls] == ["exec", "tail"]


@pytest.mark.parametrize(
    ("exit_code", "complaint", "said"),
    [
        (1, b"", ""),
        (2, b"Traceback:\n\0 at 0xA\n", " \N{REPLACEMENT CHARACTER} at 0xA"),
        (5, b"agent: the spool is damaged\n", " agent: the spool is damaged"),
        (5, b"x" * 10_000, f" {'x' * 299}…"),
    ],
)
def test_a_spool_that_the_agent_cannot_read_any_more_ends_the_run_with_what_it_says(
    exit_code: int, complaint: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.recording.unheard_ends.UNREADABLE_SECONDS", 0.0)
    run = make_executable()
    agent = ScriptedAgent(
        to_execute={run.pk: whole(run)}, unreadable=[exit_code] * 1000, complaint=complaint
    )

    run = record(run, agent)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert run.error_message == f"The record in the workspace cannot be read.{said}"


def test_a_spool_that_the_agent_can_read_again_is_read_to_its_end() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, unreadable=[1, 5, 1])

    assert_whole(record(run, agent))


def test_an_engine_that_is_away_for_a_moment_is_waited_for() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, unreachable=[AWAY, AWAY])

    assert_whole(record(run, agent))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (AgentAnswer(2, b'{"state":"refused","message":"no argv"}', b""), "command-refused"),
        (AgentAnswer(3, b'{"state":"refused","message":"disk full"}', b""), "record-refused"),
        (AgentAnswer(3, b"", b"disk full"), "record-refused"),
    ],
)
def test_a_run_that_cannot_be_recorded_is_not_started(answer: AgentAnswer, code: str) -> None:
    run = record(make_executable(), ScriptedAgent(exec_answer=answer))

    assert (run.status, run.error_code) == (Run.Status.FAILED, code)
    assert run.error_message in {"no argv", "disk full"}
    assert RunHead.objects.get(pk=run.number).sealed_at is not None
    assert not RunLoss.objects.filter(run_number=run.number).exists()


@pytest.mark.parametrize(
    "said", [b"[" * 100_000, json.dumps({"message": "\0\ud800" + "x" * 10**6}).encode()]
)
def test_a_refusal_of_a_forged_agent_is_cut_and_cleaned(said: bytes) -> None:
    run = record(make_executable(), ScriptedAgent(exec_answer=AgentAnswer(2, said, b"")))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "command-refused")
    assert 0 < len(run.error_message) <= 2000


@pytest.mark.parametrize("spool_id", ["control-plane", "build:1:1", "\ud800", "x" * 1000, ""])
def test_a_greeting_that_names_no_spool_is_no_source_of_the_record(spool_id: str) -> None:
    run = make_executable()
    spool = whole(run)
    spool.spool_id = spool_id

    run = record(run, ScriptedAgent(to_execute={run.pk: spool}))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    head = RunHead.objects.get(pk=run.number)
    assert (head.past_sources, head.event_count) == ([], 1)
    assert early_close(run) == 1, "a run that was started and of which nothing is there lacks it"


def test_an_answer_of_the_agent_that_makes_no_sense_is_asked_for_again() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, unreachable=[])
    agent.exec_answer = AgentAnswer(139, b"", b"Segmentation fault")
    control = RunControl()
    recorder = Recorder(claim(run), control, adapter=agent, limits=LIMITS)
    thread = threading.Timer(0.3, lambda: setattr(agent, "exec_answer", None))
    thread.start()
    recorder.record()
    thread.join()

    assert_whole(Run.objects.get(pk=run.pk))


def test_a_run_whose_end_is_asked_for_before_it_began_is_cancelled() -> None:
    control = RunControl()
    control.cancelled.set()
    agent = ScriptedAgent()

    run = record(make_executable(), agent, control)

    assert run.status == Run.Status.CANCELLED
    assert [call[0] for call in agent.calls] == ["stop", "tail"]


def test_a_run_whose_end_is_asked_for_is_stopped_by_the_agent() -> None:
    run = make_executable()
    agent = ScriptedAgent(spools={run.pk: whole(run)})
    store.open_source(run.number, agent.spools[run.pk].spool_id)
    store.append(run.number, agent.spools[run.pk].spool_id, agent.spools[run.pk].contents[:1])
    control = RunControl()
    control.cancelled.set()

    assert_whole(record(run, agent, control))
    stop = ("stop", str(run.pk), "--reason", "cancelled", "--grace", "1")
    assert agent.calls[0] == stop


def test_a_run_that_could_not_be_told_to_stop_yet_is_told_again() -> None:
    run = make_executable()
    spool = whole(run)
    spool.sealed = False
    control = RunControl()
    control.cancelled.set()

    class JustStarting(ScriptedAgent):
        """Its supervisor does not listen yet when it is first told; it ends once it has heard."""

        def call_agent(
            self, run_id: uuid.UUID, arguments: Sequence[str], *, stdin: bytes = b"", timeout: float
        ) -> AgentAnswer:
            answer = super().call_agent(run_id, arguments, stdin=stdin, timeout=timeout)
            if [call[0] for call in self.calls].count("stop") == 1:
                return AgentAnswer(4, b"", b"")
            spool.sealed, spool.contents = True, contents
            return answer

    contents, spool.contents = spool.contents, spool.contents[:3]
    agent = JustStarting(spools={run.pk: spool})
    assert_whole(record(run, agent, control))
    assert [call[0] for call in agent.calls].count("stop") == 2
