"""How runs end, as their records tell it; above all sessions, which have any number of leaders."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.functions import Now

from runs.models import Run
from runs.record import store
from tests.runs.executable import make_executable
from tests.runs.record_factory import Source, make_run
from workspaces.harnesses import CODEX, REFUSED, SHELL

pytestmark = pytest.mark.django_db

HUNG_UP: dict[str, Any] = {"code": None, "signal": "SIGHUP", "reason": "signaled"}
KILLED: dict[str, Any] = {"code": None, "signal": "SIGKILL", "reason": "signaled"}
NOT_THERE: dict[str, Any] = {"code": 127, "signal": None, "reason": "startFailed"}


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


RECORDER_LOST = {"code": None, "signal": None, "reason": "lost"}


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


@pytest.mark.parametrize("exit_", [[], 5, "x", {"code": True, "signal": {}, "reason": []}])
def test_a_forged_end_of_a_session_settles_it_all_the_same(exit_: Any) -> None:
    run, source = session()
    lead(source, exited(4))
    source.sealed(exit=exit_, because="ended")
    source.append()

    run.refresh_from_db()
    assert run.status in Run.TERMINAL


@pytest.mark.parametrize(
    ("harness", "argv", "code", "error"),
    [
        ("codex", [*CODEX.read_only, "Fix it."], REFUSED, "harness-refused"),
        ("codex", [*CODEX.read_only, "Fix it."], 1, "run-exited"),
        ("codex", [*CODEX.one_shot, "Fix it."], REFUSED, "run-exited"),
        ("shell", [*SHELL.one_shot, "exit 77"], REFUSED, "run-exited"),
        ("aider", [*CODEX.read_only, "Fix it."], REFUSED, "run-exited"),
    ],
)
def test_a_restricted_harness_that_refuses_a_prompt_fails_with_a_code_of_its_own(
    harness: str, argv: list[str], code: int, error: str
) -> None:
    command = {"executable": argv[0], "args": argv[1:]}
    run = make_executable(harness_id=harness, command=command)
    source = Source(run)
    source.open()
    source.started()
    lead(source, exited(code))
    run = sealed(run, source, exited(code))
    assert (run.status, run.exit_code, run.error_code) == (Run.Status.FAILED, code, error)


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
