"""The recorder and an agent that fails at will: nothing twice, nothing lost, always an end."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models.functions import Now
from structlog.testing import capture_logs

from controlplane.work.leases import LeaseLost
from runs.agent.record.frames import Kind
from runs.input.sealed import StartInput, seal_input
from runs.models import Run, RunCheckpoint, RunEvent, RunHead, RunLoss
from runs.record import store
from runs.recording import run_sweeper as sweeper
from runs.recording.control import RunControl
from runs.recording.program_start import RecordLimits
from runs.recording.recorder import NOT_BEGUN_SECONDS, Recorder
from runs.recording.thread_connections import StoppedError
from tests.runs.executable import LEASE, boot_run, claim, make_executable
from tests.runs.record_factory import Source
from tests.runs.recording.scripted_agent import Executed, ScriptedAgent, Spool, Tailed
from workspaces import services as workspaces
from workspaces.models import ENGINE_GONE, RuntimeInstance
from workspaces.runtimes.base import AgentAnswer, LaunchError

pytestmark = pytest.mark.django_db(transaction=True)

LIMITS = RecordLimits(
    policy="block",
    input="masked",
    spool_bytes=1 << 20,
    segment_bytes=1 << 16,
    patch_bytes=1000,
    max_files=10,
    time_seconds=60.0,
    grace_seconds=1.0,
)
GONE = LaunchError("runtime-gone", "There is no such container.")
AWAY = LaunchError("adapter-unavailable", "The engine does not answer.")
NOT_RUNNING = LaunchError("runtime-not-running", "It does not run.")
OUTPUT = [b"first\n", b"second " * 1000, b"third\n"]


def whole(run: Run, *, code: int = 0) -> Spool:
    """Return the spool of a whole run."""
    source = Source(run)
    source.started()
    process = source.process()
    for body in OUTPUT:
        source.output(process, body)
    source.closed(process)
    source.exited(process, code=code)
    source.sealed(code=code)
    return Spool(source.source_id, source.contents)


def record(run: Run, agent: ScriptedAgent, control: RunControl | None = None) -> Run:
    """Record ``run`` to its end, and return it anew."""
    Recorder(claim(run), control or RunControl(), adapter=agent, limits=LIMITS).record()
    return Run.objects.get(pk=run.pk)


def output(run: Run) -> bytes:
    """Return everything the record has of the standard output."""
    rows = RunEvent.objects.filter(run_number=run.number, kind=Kind.IO_CHUNK).order_by("sequence")
    return b"".join(bytes(body) for body in rows.values_list("body", flat=True))


def early_close(run: Run) -> int | None:
    """Return where the record says that its end is missing from."""
    spans = RunLoss.objects.filter(run_number=run.number, process_number__isnull=True)
    return spans.get(kind=RunLoss.Kind.EARLY_CLOSE).from_sequence


def assert_whole(run: Run) -> None:
    """The record has everything, once, and says so."""
    assert output(run) == b"".join(OUTPUT)
    head = RunHead.objects.get(pk=run.number)
    sequences = list(
        RunEvent.objects.filter(run_number=run.number)
        .order_by("sequence")
        .values_list("sequence", flat=True)
    )
    assert sequences == list(range(1, 9))
    assert head.sealed_at is not None
    assert head.event_count == 8
    assert not RunLoss.objects.filter(run_number=run.number).exists()


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


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_whose_container_is_gone_before_it_began_fails(error: LaunchError) -> None:
    run = record(make_executable(), ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-gone")
    assert not RunLoss.objects.filter(run_number=run.number).exists()


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_whose_container_goes_away_ends_with_a_named_loss(error: LaunchError) -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:3])

    run = record(run, ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-ended")
    assert output(run) == b"first\n"
    assert early_close(run) == 4


def test_a_container_that_another_engine_should_have_is_not_gone() -> None:
    run = make_executable()
    RuntimeInstance.objects.update(engine_id="ours")
    agent = ScriptedAgent(
        to_execute={run.pk: whole(run)}, unreachable=[GONE, GONE], engine="another"
    )

    assert_whole(record(run, agent))


@pytest.mark.parametrize("mode", [Run.Mode.ONE_SHOT, Run.Mode.BOOT])
def test_a_record_whose_engine_is_gone_for_good_ends_with_a_named_loss(mode: Run.Mode) -> None:
    run = make_executable() if mode == Run.Mode.ONE_SHOT else boot_run("running")
    RuntimeInstance.objects.update(engine_id="gone")
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:3])
    assert run.attempt is not None
    with transaction.atomic():
        workspaces.end_runtimes(
            [run.attempt.run_id],
            status=RuntimeInstance.Status.FAILED,
            code=ENGINE_GONE,
            message="The engine is gone.",
        )

    run = record(run, ScriptedAgent(unreachable=[GONE] * 1000, engine="another"))

    code = "workspace-ended" if mode == Run.Mode.ONE_SHOT else ENGINE_GONE
    assert (run.status, run.error_code) == (Run.Status.FAILED, code)
    assert early_close(run) == 4


def test_the_exit_decides_although_the_end_of_the_record_is_lost() -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:-1])

    run = record(run, ScriptedAgent(unreachable=[GONE] * 1000))

    assert (run.status, run.exit_code) == (Run.Status.COMPLETED, 0)
    assert early_close(run) == 8


def test_what_can_be_part_of_no_record_ends_the_record_with_what_came_before() -> None:
    run = make_executable()
    spool = whole(run)
    spool.contents[4] = b"no event"

    run = record(run, ScriptedAgent(to_execute={run.pk: spool}))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 5


def test_a_spool_that_is_not_there_any_more_ends_the_record_with_a_loss() -> None:
    run = make_executable()
    spool = whole(run)
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents[:4])

    run = record(run, ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 5


def test_a_run_that_began_is_not_begun_again_whatever_became_of_its_spool() -> None:
    run = make_executable()
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, forgets=True)

    run = record(run, agent)

    assert [call[0] for call in agent.calls] == ["exec"]
    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")
    assert early_close(run) == 1


def test_a_run_that_another_worker_began_is_not_begun_again_without_its_spool() -> None:
    run = make_executable()
    claim(run, lease=timedelta(seconds=-1))
    store.open_source(run.number, whole(run).spool_id)
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})

    run = record(run, agent)

    assert [call[0] for call in agent.calls] == ["tail"]
    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")


@pytest.mark.parametrize("error", [GONE, NOT_RUNNING])
def test_a_run_that_began_and_whose_container_is_gone_at_once_lacks_its_record(
    error: LaunchError,
) -> None:
    run = make_executable()
    store.open_source(run.number, whole(run).spool_id)

    run = record(run, ScriptedAgent(unreachable=[error] * 1000))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "workspace-ended")
    assert early_close(run) == 1


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


def test_a_recorder_that_lost_its_lease_writes_nothing() -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(seconds=-1))
    claim(run, "worker-b")
    agent = ScriptedAgent(spools={run.pk: whole(run)})

    with pytest.raises(LeaseLost):
        Recorder(stale, RunControl(), adapter=agent, limits=LIMITS).record()

    assert RunHead.objects.get(pk=run.number).event_count == 0
    assert [call for call in agent.calls if call[0] == "exec"] == []


@pytest.mark.parametrize(
    ("lease", "seconds_ago"), [(0.5, 0.0), (60.0, 5.0)], ids=["short lease", "long ago"]
)
def test_a_claim_that_may_be_another_ones_by_now_starts_nothing(
    lease: float, seconds_ago: float
) -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(seconds=lease))
    Run.objects.filter(pk=run.pk).update(lease_expires_at=Now())
    claim(run, "worker-b")
    agent = ScriptedAgent(spools={run.pk: whole(run)})
    recorder = Recorder(
        stale,
        RunControl(),
        adapter=agent,
        limits=LIMITS,
        claimed=time.monotonic() - seconds_ago,
    )

    with pytest.raises(LeaseLost):
        recorder.record()

    assert [call for call in agent.calls if call[0] == "exec"] == []


def test_what_a_worker_starts_that_has_just_lost_its_lease_is_stored_by_the_other_one() -> None:
    run = make_executable()
    stale = claim(run, lease=timedelta(minutes=1))
    Run.objects.filter(pk=run.pk).update(lease_expires_at=Now())
    current = claim(run, "worker-b")
    agent = ScriptedAgent(to_execute={run.pk: whole(run)})
    late = Recorder(stale, RunControl(), adapter=agent, limits=LIMITS, claimed=time.monotonic())

    with pytest.raises(LeaseLost):
        late.record()
    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.event_count, agent.spools[run.pk].acknowledged) == ("", 0, 0)

    Recorder(current, RunControl(), adapter=agent, limits=LIMITS).record()
    assert_whole(run)


class OvertakenAgent(ScriptedAgent):
    """Another worker claims the run, whose lease ran out, before its tail speaks or after."""

    after_greeting = False

    def open_agent(self, run_id: uuid.UUID, arguments: Sequence[str]) -> Tailed:
        """Answer ``tail``, and have the run claimed meanwhile."""
        opened = super().open_agent(run_id, arguments)
        assert isinstance(opened, Tailed)
        return _Overtaken(opened, self, uuid.UUID(arguments[1]))


class _Overtaken(Tailed):
    def __init__(self, tailed: Tailed, agent: OvertakenAgent, run_id: uuid.UUID) -> None:
        self._tailed, self._run_id = tailed, run_id
        self._waits, self._due = agent.after_greeting, not agent.after_greeting

    def read(self, timeout: float, *, wake: int = -1) -> bytes | None:
        """Pass on the next piece."""
        if self._due:
            self._waits = False
            Run.objects.filter(pk=self._run_id).update(lease_expires_at=Now() - LEASE)
            claim(Run.objects.get(pk=self._run_id), "worker-b")
        piece = self._tailed.read(timeout)
        self._due = self._waits and b"\n" in (piece or b"")
        return piece

    def write(
        self, data: bytes, *, timeout: float | None = None, within: float | None = None
    ) -> None:
        """Pass on acknowledgements."""
        self._tailed.write(data)

    def exit_code(self) -> int | None:
        """Return what was prepared."""
        return self._tailed.exit_code()


@pytest.mark.parametrize("opened", [False, True], ids=["before it opens", "once it has opened"])
def test_a_recorder_whose_run_another_one_claims_stores_nothing_more(opened: bool) -> None:
    run = begun_session()
    spool = whole(run)
    agent = OvertakenAgent(spools={run.pk: spool}, piece=40)
    agent.after_greeting = opened

    with pytest.raises(LeaseLost):
        record(run, agent)

    head = RunHead.objects.get(pk=run.number)
    assert (head.source_id, head.event_count) == (spool.spool_id if opened else "", 0)
    assert spool.acknowledged == 0
    row = Run.objects.get(pk=run.pk)
    assert (row.status, row.worker_id) == (Run.Status.RUNNING, "worker-b")


def test_a_recorder_that_is_told_to_stop_stops_and_leaves_the_run_open() -> None:
    run = claim(make_executable())
    control = RunControl()
    control.stopped.set()

    with pytest.raises(StoppedError):
        Recorder(run, control, adapter=ScriptedAgent(), limits=LIMITS).record()

    Run.objects.require(run.fence)


def begun_session(*, ago: timedelta = timedelta()) -> Run:
    """Return a session that its gateway has begun some time ago."""
    return make_executable(
        mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING, started_at=Now() - ago
    )


def test_a_session_that_has_begun_and_never_had_a_spool_is_ended() -> None:
    run = record(begun_session(ago=timedelta(seconds=NOT_BEGUN_SECONDS - 1)), ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "session-not-begun")
    assert run.finished_at is not None
    assert run.started_at is not None
    assert run.finished_at - run.started_at >= timedelta(seconds=NOT_BEGUN_SECONDS)
    assert not RunLoss.objects.filter(run_number=run.number).exists()


def test_a_session_without_a_spool_is_not_waited_for_anew_by_every_recorder() -> None:
    run = record(begun_session(ago=timedelta(minutes=5)), agent := ScriptedAgent())

    assert run.error_code == "session-not-begun"
    assert [call[0] for call in agent.calls] == ["tail"]


def test_a_session_that_has_just_begun_is_waited_for() -> None:
    run = begun_session()
    agent = ScriptedAgent(spools={run.pk: whole(run, code=3)}, unreachable=[AWAY])

    run = record(run, agent)

    assert (run.status, run.exit_code) == (Run.Status.COMPLETED, 3)


def test_a_run_that_is_silent_long_after_its_time_is_ended() -> None:
    run = make_executable(
        time_limit_ms=1000, status=Run.Status.RUNNING, started_at=Now() - timedelta(minutes=5)
    )
    recorder = Recorder(
        claim(run), RunControl(), adapter=ScriptedAgent(unreachable=[AWAY] * 1000), limits=LIMITS
    )
    recorder._heard -= 120

    recorder.record()

    run.refresh_from_db()
    assert (run.status, run.error_code) == (Run.Status.FAILED, "time-limit-exceeded")


class Quiet(ScriptedAgent):
    """Nothing was heard of it for two minutes whenever its record is asked for.

    ``rest`` is what its spool has in the end, from the second time on.
    """

    recorder: Recorder
    rest: list[bytes] | None = None

    def open_agent(self, run_id: uuid.UUID, arguments: Sequence[str]) -> Tailed | Executed:
        """Answer as ever."""
        if arguments[0] == "tail":
            self.recorder._heard -= 120
            (spool,) = self.spools.values()
            if self.rest and [call[0] for call in self.calls].count("tail") > 1:
                spool.contents, spool.sealed = self.rest, True
        return super().open_agent(run_id, arguments)


def claimed_long_ago() -> tuple[Run, Spool, list[bytes]]:
    """Return a run of a minute at most, the beginning of its spool, and all of its contents."""
    run = make_executable(
        time_limit_ms=60_000, status=Run.Status.RUNNING, started_at=Now() - timedelta(hours=1)
    )
    spool = whole(run)
    contents, spool.contents, spool.sealed = spool.contents, spool.contents[:3], False
    return run, spool, contents


def test_a_run_that_began_long_after_its_claim_has_its_time_from_then_on() -> None:
    run, spool, contents = claimed_long_ago()
    agent = Quiet(to_execute={run.pk: spool})
    agent.rest = contents
    agent.recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)

    agent.recorder.record()

    assert_whole(Run.objects.get(pk=run.pk))


def test_who_takes_a_run_over_counts_its_time_from_its_beginning() -> None:
    run, spool, _ = claimed_long_ago()
    store.open_source(run.number, spool.spool_id)
    store.append(run.number, spool.spool_id, spool.contents)
    RunCheckpoint.objects.update(ingested_at=Now() - timedelta(minutes=5))
    agent = Quiet(spools={run.pk: spool})
    agent.recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)

    agent.recorder.record()

    run.refresh_from_db()
    assert (run.status, run.error_code) == (Run.Status.FAILED, "time-limit-exceeded")


def test_a_run_whose_engine_is_away_is_not_taken_for_silent() -> None:
    run = make_executable(
        time_limit_ms=1000, status=Run.Status.RUNNING, started_at=Now() - timedelta(hours=1)
    )
    agent = ScriptedAgent(to_execute={run.pk: whole(run)}, engine_away=True)
    recorder = Recorder(claim(run), RunControl(), adapter=agent, limits=LIMITS)
    recorder._heard -= 120

    recorder.record()

    assert_whole(Run.objects.get(pk=run.pk))


def test_a_session_whose_agent_says_nothing_is_ended_when_its_end_is_asked_for() -> None:
    run = make_executable(mode=Run.Mode.INTERACTIVE, status=Run.Status.RUNNING)
    silent = LaunchError("agent-silent", "The agent in the workspace gave no answer for 20 s.")
    control = RunControl()
    control.cancelled.set()
    recorder = Recorder(
        claim(run), control, adapter=ScriptedAgent(unreachable=[silent] * 1000), limits=LIMITS
    )
    recorder._heard -= 120
    recorder._stop_run()
    recorder._stopped_by -= 120

    recorder.record()

    run.refresh_from_db()
    assert run.status == Run.Status.CANCELLED


def test_an_error_that_nobody_thought_of_does_not_keep_a_run_open_for_ever() -> None:
    run = make_executable()
    agent = ScriptedAgent(unreachable=[ZeroDivisionError()] * 1000)  # type: ignore[list-item]

    run = record(run, agent)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-lost")


def test_what_still_runs_of_a_run_that_has_ended_is_stopped() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed = False
    agent = ScriptedAgent(spools={run.pk: spool})

    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    assert leftovers.acknowledge() == 0
    assert ("stop", str(run.pk), "--reason", "stop") in agent.calls

    spool.sealed = True
    assert leftovers.acknowledge() == 1
    assert agent.spools == {}


def test_the_spool_of_a_dead_recorder_is_sealed_and_removed_when_its_run_has_ended() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed, spool.abandoned = False, True
    agent = ScriptedAgent(spools={run.pk: spool})

    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    assert leftovers.acknowledge() == 0
    assert leftovers.acknowledge() == 1

    assert agent.spools == {}


@pytest.mark.parametrize(
    ("full", "told"), [(False, "unrecorded_spool_sealed"), (True, "unrecorded_spool_not_sealed")]
)
def test_the_log_says_that_a_spool_was_sealed_only_where_it_was(full: bool, told: str) -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    spool = whole(run)
    spool.sealed, spool.abandoned, spool.disk_full = False, True, full

    with capture_logs() as logs:
        sweeper.Leftovers(
            ScriptedAgent(spools={run.pk: spool}), committed=timedelta()
        ).acknowledge()

    assert [line["event"] for line in logs if line["event"].startswith("unrecorded")] == [told]


@pytest.mark.parametrize("told", [b"[7]", b"{}", b'[{"runId":1}]', b"[" * 100_000, b"\xff"])
def test_a_workspace_that_tells_nonsense_of_its_spools_is_passed_over(told: bytes) -> None:
    store.close_early(make_executable().number, reason="record-lost", detail="Lost.")

    assert (
        sweeper.Leftovers(ScriptedAgent(runs_answer=told), committed=timedelta()).acknowledge() == 0
    )


def test_a_workspace_is_asked_for_leftovers_once_after_its_last_run() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    agent = ScriptedAgent(unreachable=[LaunchError("engine-timeout", "Away.")])
    leftovers = sweeper.Leftovers(agent, committed=timedelta())
    asked = []

    for _ in range(4):
        leftovers.acknowledge()
        asked.append(len(agent.calls))
    assert asked == [1, 2, 2, 2]  # the first time it could not be reached

    later = make_executable(attempt=run.attempt)
    leftovers.acknowledge()
    assert len(agent.calls) == 2
    store.close_early(later.number, reason="record-lost", detail="Lost.")
    agent.spools[later.pk] = whole(later)
    assert [leftovers.acknowledge() for _ in range(3)] == [1, 0, 0]
    assert [call for call in agent.calls if call == ("runs",)] == [("runs",)] * 3

    sweeper.Leftovers(agent, committed=timedelta()).acknowledge()
    assert agent.calls[-1] == ("runs",)
    assert agent.calls.count(("runs",)) == 4


def test_a_run_that_has_just_ended_counts_when_those_that_ended_before_it_are_committed() -> None:
    run = make_executable()
    store.close_early(run.number, reason="record-lost", detail="Lost.")
    agent = ScriptedAgent()
    leftovers = sweeper.Leftovers(agent, committed=timedelta(hours=1))

    leftovers.acknowledge()
    assert agent.calls == []
    Run.objects.filter(pk=run.pk).update(finished_at=Now() - timedelta(hours=2))
    leftovers.acknowledge()
    assert agent.calls == [("runs",)]


# ------------------------------------------------------------------------------------- boot runs


def test_a_boot_run_goes_on_for_as_long_as_its_container_may_come_back() -> None:
    run = boot_run(RuntimeInstance.Status.RUNNING)
    agent = ScriptedAgent(spools={run.pk: whole(run)}, unreachable=[NOT_RUNNING, GONE, NOT_RUNNING])

    assert_whole(record(run, agent))
    assert {call[0] for call in agent.calls} == {"tail"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (RuntimeInstance.Status.FAILED, Run.Status.FAILED),
        (RuntimeInstance.Status.STOPPED, Run.Status.COMPLETED),
    ],
)
def test_a_boot_run_ends_with_its_runtime(status: str, expected: str) -> None:
    run = record(boot_run(status), ScriptedAgent(unreachable=[GONE] * 1000))

    assert run.status == expected
    assert RunHead.objects.get(pk=run.number).sealed_at is not None


def test_a_boot_run_of_a_failed_build_ends_with_the_reason_of_its_attempt() -> None:
    run = boot_run(None)
    assert run.attempt is not None
    type(run.attempt).objects.filter(pk=run.attempt.pk).update(
        status="failed",
        error_code="build-timed-out",
        error_message="Too slow.",
        finished_at=Now() - timedelta(minutes=1),
    )

    run = record(run, ScriptedAgent())

    assert (run.status, run.error_code) == (Run.Status.FAILED, "build-timed-out")
    assert not RunLoss.objects.filter(run_number=run.number).exists()
