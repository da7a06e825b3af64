"""How runs end, as their records tell it; above all sessions, which have any number of leaders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from runs.models import Run, RunLoss
from runs.record import store
from runs.record.verify import verify_run
from tests.factories import make_job
from tests.runs.executable import make_executable
from tests.runs.record_factory import Source, make_run
from workspaces.harnesses import CODEX, REFUSED, SHELL

pytestmark = pytest.mark.django_db

HUNG_UP: dict[str, Any] = {"code": None, "signal": "SIGHUP", "reason": "signaled"}
KILLED: dict[str, Any] = {"code": None, "signal": "SIGKILL", "reason": "signaled"}
NOT_THERE: dict[str, Any] = {"code": 127, "signal": None, "reason": "startFailed"}
TOO_LATE: dict[str, Any] = {"code": 77, "signal": None, "reason": "timeout"}
RECORDER_LOST: dict[str, Any] = {"code": None, "signal": None, "reason": "lost"}


def exited(code: int) -> dict[str, Any]:
    return {"code": code, "signal": None, "reason": "exited"}


def session(*, cancelled: bool = False, **values: Any) -> tuple[Run, Source]:
    """Return a running session and the source of its record, which has begun."""
    asked = Now() if cancelled else None
    run = make_run(mode=Run.Mode.INTERACTIVE, cancel_requested_at=asked, **values)
    source = Source(run)
    source.open()
    source.started()
    return run, source


def lead(source: Source, *exits: dict[str, Any] | None) -> None:
    """Tell of one leader after the other; None has not ended."""
    for exit_ in exits:
        failed = exit_ is not None and exit_["reason"] == "startFailed"
        more: dict[str, Any] = {"startFailed": "no such file"} if failed else {}
        process = source.process(["bash", "-l"], channel=source.processes + 1, kind="shell", **more)
        if exit_ is not None:
            source.exited(process, **exit_)


def command(*, mode: str = Run.Mode.ONE_SHOT, **values: Any) -> tuple[Run, Source]:
    """Return a running run that is no session, and the source of its record, which has begun."""
    run = make_run(mode=mode, **values)
    source = Source(run)
    source.open()
    source.started()
    return run, source


def stored_beside(exit_: dict[str, Any] | None) -> None:
    """Store the beginning of another session's record, with one leader."""
    _, source = session()
    lead(source, exit_)
    source.append()


def sealed(run: Run, source: Source, exit_: dict[str, Any] | None, because: str = "ended") -> Run:
    """End the record, and return the run anew."""
    source.sealed(exit=exit_, because=because)
    source.append()
    run.refresh_from_db()
    return run


def closed(run: Run, source: Source) -> Run:
    """End the record as the control plane does without the agent, and return the run anew."""
    source.append()
    store.close_early(run.number, reason="container-gone", detail="It is gone.", error_code="gone")
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("because", ["ended", "stopped", "runtime-ended"])
def test_a_session_without_a_command_is_completed_without_an_exit(because: str) -> None:
    run = sealed(*session(), None, because)

    assert (run.status, run.exit_code, run.exit_signal) == (Run.Status.COMPLETED, None, "")
    assert (run.error_code, run.error_message) == ("", "")


@pytest.mark.parametrize("code", [0, 1, 255])
def test_a_session_is_completed_with_the_exit_of_the_command_that_was_started_last(
    code: int,
) -> None:
    run, source = session()
    lead(source, exited(3), exited(code))

    run = sealed(run, source, exited(code))

    assert (run.status, run.exit_code) == (Run.Status.COMPLETED, code)
    assert run.error_code == ""


@pytest.mark.parametrize("exit_", [HUNG_UP, KILLED])
def test_a_session_whose_client_went_away_is_completed_with_the_signal(
    exit_: dict[str, Any],
) -> None:
    run, source = session()
    lead(source, exit_)

    run = sealed(run, source, exit_, "stopped")

    assert (run.status, run.exit_signal) == (Run.Status.COMPLETED, exit_["signal"])


def test_a_session_whose_last_command_was_killed_by_somebody_is_completed() -> None:
    run, source = session()
    lead(source, KILLED)

    assert sealed(run, source, KILLED).status == Run.Status.COMPLETED


def test_a_session_that_was_cancelled_is_cancelled_by_what_its_commands_tell() -> None:
    run, source = session()
    told = {"code": None, "signal": "SIGTERM", "reason": "cancelled"}
    lead(source, exited(0), told)

    run = sealed(run, source, told, "stopped")

    assert (run.status, run.exit_signal) == (Run.Status.CANCELLED, "SIGTERM")


@pytest.mark.parametrize("exit_", [None, exited(0)])
def test_a_session_that_was_cancelled_when_no_command_ran_is_cancelled(
    exit_: dict[str, Any] | None,
) -> None:
    run, source = session(cancelled=True)
    lead(source, *([exit_] if exit_ else []))

    assert sealed(run, source, exit_, "stopped").status == Run.Status.CANCELLED


def test_a_session_that_ended_before_it_could_be_cancelled_is_completed() -> None:
    run, source = session(cancelled=True)
    lead(source, exited(0))

    assert sealed(run, source, exited(0), "ended").status == Run.Status.COMPLETED


def test_a_session_of_which_no_command_could_be_started_has_failed() -> None:
    run, source = session()
    lead(source, NOT_THERE)

    run = sealed(run, source, NOT_THERE)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "run-start-failed")
    assert run.error_message == "The command could not be started: no such file."
    assert run.exit_code == 127


def test_what_another_session_or_a_process_of_the_workspace_ran_is_no_command_of_this_one() -> None:
    stored_beside(exited(0))
    run, source = session()
    source.exited(source.process(["sleep", "1"], leader=False))
    lead(source, NOT_THERE)

    run = sealed(run, source, NOT_THERE)

    assert (run.status, run.error_code) == (Run.Status.FAILED, "run-start-failed")


def test_a_session_of_which_one_command_could_not_be_started_is_completed() -> None:
    run, source = session()
    lead(source, exited(0), NOT_THERE)

    run = sealed(run, source, NOT_THERE)

    assert (run.status, run.exit_code, run.error_code) == (Run.Status.COMPLETED, 127, "")


@pytest.mark.parametrize("reason", ["timeout", "lost"])
def test_a_session_that_did_not_end_by_itself_has_failed(reason: str) -> None:
    run, source = session()
    told = {"code": None, "signal": None, "reason": reason}
    lead(source, told)

    assert sealed(run, source, told, "stopped").status == Run.Status.FAILED


@pytest.mark.parametrize("exits", [(), (None,), (exited(0), None), (None, exited(0))])
def test_a_session_whose_record_ended_early_has_failed_unless_all_its_commands_had_ended(
    exits: tuple[dict[str, Any] | None, ...],
) -> None:
    by_agent, by_us = session(), session()
    lead(by_agent[1], *exits)
    lead(by_us[1], *exits)

    # What the agent takes for the end is that of the last one, whatever goes on beside it.
    last = exits[-1] if exits else None
    runs = [sealed(*by_agent, last or RECORDER_LOST, "recorder-lost"), closed(*by_us)]

    assert [run.status for run in runs] == [Run.Status.FAILED] * 2
    assert [run.error_code for run in runs] == ["record-ended-early", "gone"]


@pytest.mark.parametrize("last", [exited(7), HUNG_UP])
def test_a_session_whose_record_ended_early_after_all_its_commands_is_completed(
    last: dict[str, Any],
) -> None:
    by_agent, by_us = session(), session()
    lead(by_agent[1], exited(1), last)
    lead(by_us[1], exited(1), last)

    runs = [sealed(*by_agent, last, "recorder-lost"), closed(*by_us)]

    assert [run.status for run in runs] == [Run.Status.COMPLETED] * 2
    assert [run.exit_code for run in runs] == [last["code"]] * 2
    assert [run.exit_signal for run in runs] == [last["signal"] or ""] * 2


def test_a_session_that_was_to_be_cancelled_and_ended_early_is_what_its_commands_tell() -> None:
    run, source = session(cancelled=True)
    lead(source, exited(0))

    assert sealed(run, source, exited(0), "recorder-lost").status == Run.Status.COMPLETED


@pytest.mark.parametrize("begin", [session, command])
def test_an_exit_that_the_recorder_has_lost_is_the_one_that_the_last_command_tells(
    begin: Callable[[], tuple[Run, Source]],
) -> None:
    stored_beside(None)
    run, source = begin()
    source.process(["sleep", "1"], leader=False)
    lead(source, exited(7))
    source.exited(source.process(["true"], leader=False))

    run = sealed(run, source, RECORDER_LOST, "stopped")

    is_session = run.mode == Run.Mode.INTERACTIVE
    assert run.exit_code == 7
    assert run.status == (Run.Status.COMPLETED if is_session else Run.Status.FAILED)
    assert run.error_code == ("" if is_session else "run-exited")


@pytest.mark.parametrize("exit_", [[], 5, "x", {"code": True, "signal": {}, "reason": []}])
def test_a_forged_end_of_a_session_settles_it_all_the_same(exit_: Any) -> None:
    run, source = session()
    lead(source, exited(4))
    source.sealed(exit=exit_, because="ended")
    source.append()

    run.refresh_from_db()
    assert run.status in Run.TERMINAL


@pytest.mark.parametrize("begin", [session, command])
def test_a_forged_end_settles_a_run_within_what_its_row_can_hold(
    begin: Callable[[], tuple[Run, Source]],
) -> None:
    endless: dict[str, Any] = {"code": -(10**30), "signal": "SIG" + "X" * 50, "reason": "x" * 50}
    run = sealed(*begin(), endless)
    assert run.exit_code is not None
    assert run.exit_code < 0
    assert run.exit_signal == "SIG" + "X" * 12 + "…"
    if run.mode == Run.Mode.ONE_SHOT:
        assert (run.status, run.error_code) == (Run.Status.FAILED, "run-signaled")

    run = sealed(*begin(), None, "because " * 50)
    assert (run.status, run.error_code) == (Run.Status.FAILED, "record-ended-early")
    assert ("because " * 50)[:199] + "…" in run.error_message

    run, source = begin()
    source.exited(source.process(startFailed="no " * 500), **NOT_THERE)
    run = sealed(run, source, NOT_THERE)
    assert run.error_message == f"The command could not be started: {('no ' * 500)[:499]}…."


@pytest.mark.parametrize("mode", [Run.Mode.ONE_SHOT, Run.Mode.BOOT])
@pytest.mark.parametrize(
    ("exit_", "code", "message"),
    [
        (exited(3), "run-exited", "The command exited with 3."),
        (KILLED, "run-signaled", "The command was ended by SIGKILL."),
        ({"code": 0, "reason": "timeout"}, "run-timeout", "The time limit of the run was reached."),
        (
            {"code": 1, "reason": "startFailed"},
            "run-start-failed",
            "The command could not be started.",
        ),
        (RECORDER_LOST, "run-lost", "How the command ended is not known."),
    ],
)
def test_a_run_that_failed_says_with_a_code_and_a_sentence_how(
    mode: str, exit_: dict[str, Any], code: str, message: str
) -> None:
    stored_beside(NOT_THERE)

    run = sealed(*command(mode=mode), exit_)

    assert (run.status, run.exit_code) == (Run.Status.FAILED, exit_["code"])
    assert (run.error_code, run.error_message) == (code, message)


@pytest.mark.parametrize(
    ("mode", "exit_", "because", "status"),
    [
        (Run.Mode.BOOT, None, "stopped", Run.Status.COMPLETED),
        (Run.Mode.BOOT, exited(143), "stopped", Run.Status.COMPLETED),
        (Run.Mode.BOOT, None, "recorder-lost", Run.Status.FAILED),
        (Run.Mode.BOOT, exited(1), "ended", Run.Status.FAILED),
        (Run.Mode.ONE_SHOT, None, "stopped", Run.Status.FAILED),
        (Run.Mode.ONE_SHOT, exited(143), "stopped", Run.Status.FAILED),
    ],
)
def test_a_stop_in_order_completes_a_sandbox_and_nothing_else(
    mode: str, exit_: dict[str, Any] | None, because: str, status: str
) -> None:
    assert sealed(*command(mode=mode), exit_, because).status == status


def test_a_command_that_was_cancelled_is_cancelled_however_it_then_ended() -> None:
    run, source = command()
    lead(source, exited(0))
    told = {"code": 0, "signal": None, "reason": "cancelled"}

    assert sealed(run, source, told).status == Run.Status.CANCELLED


def test_a_run_that_never_began_ends_with_its_record() -> None:
    run = make_run(status=Run.Status.QUEUED)

    assert store.end_in_order(run.number, reason="ended", status=Run.Status.CANCELLED)

    run.refresh_from_db()
    assert run.status == Run.Status.CANCELLED


@pytest.mark.parametrize(
    ("harness", "argv", "exit_", "error"),
    [
        ("codex", [*CODEX.read_only, "Fix it."], exited(REFUSED), "harness-refused"),
        ("codex", [*CODEX.read_only, "Fix it."], exited(1), "run-exited"),
        ("codex", [*CODEX.read_only, "Fix it."], TOO_LATE, "run-timeout"),
        ("codex", [*CODEX.one_shot, "Fix it."], exited(REFUSED), "run-exited"),
        ("shell", [*SHELL.one_shot, "exit 77"], exited(REFUSED), "run-exited"),
        ("aider", [*CODEX.read_only, "Fix it."], exited(REFUSED), "run-exited"),
        ("of-an-earlier-release", [*CODEX.read_only, "Fix it."], exited(REFUSED), "run-exited"),
    ],
)
def test_a_restricted_harness_that_refuses_a_prompt_fails_with_a_code_of_its_own(
    harness: str, argv: list[str], exit_: dict[str, Any], error: str
) -> None:
    command = {"executable": argv[0], "args": argv[1:]}
    run = make_executable(harness_id=harness, command=command)
    source = Source(run)
    source.open()
    source.started()
    lead(source, exit_)
    run = sealed(run, source, exit_)
    assert (run.status, run.exit_code) == (Run.Status.FAILED, exit_["code"])
    assert run.error_code == error
    assert ("refused the prompt" in run.error_message) == (error == "harness-refused")


def test_a_sandbox_has_no_prompt_that_its_harness_could_refuse() -> None:
    run = Run.objects.get(pk=make_job().attempt.run_id)
    Run.objects.filter(pk=run.pk).update(harness_id="codex")
    source = Source(run)
    source.open()
    run = sealed(run, source, exited(REFUSED))
    assert (run.status, run.error_code) == (Run.Status.FAILED, "run-exited")


def test_a_command_that_is_no_session_fails_by_its_exit() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    lead(source, exited(1))

    run = sealed(run, source, exited(1))

    assert (run.status, run.error_code) == (Run.Status.FAILED, "run-exited")


@pytest.mark.parametrize("how", [{"code": None, "signal": "SIGKILL"}, {"code": 137}])
def test_a_command_that_ran_out_of_memory_failed_for_that_reason(how: dict[str, Any]) -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    exit_ = {"code": None, "signal": None, **how, "reason": "outOfMemory"}
    lead(source, exit_)
    run = sealed(run, source, exit_)
    assert (run.status, run.error_code) == (Run.Status.FAILED, "run-out-of-memory")
    assert "ran out of memory" in run.error_message
    assert (run.exit_code, run.exit_signal) == (how["code"], how.get("signal", ""))


def test_a_seal_covers_what_its_own_record_lacks_and_nothing_of_another_one() -> None:
    runs = [closed(*session()) for _ in range(2)]

    assert RunLoss.objects.count() == len(runs)
    assert [verify_run(run).ok for run in runs] == [True] * 2
