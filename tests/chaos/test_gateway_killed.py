"""Gateways and clients die in the middle: nobody is left behind, and the record says what was."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.gateways import Entrance, entrance_of, start_gateway
from tests.chaos.records import assert_nobody_is_at, output, wait_final
from tests.stack.api_relay import Exchange, relay_to
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import runs, wait_for
from tests.stack.ssh import short_folder
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

STUBBORN = (
    "trap '' HUP TERM INT; echo begun; while :; do python3 -c 'import time; time.sleep(600)' {0};"
    " done"
)


@pytest.fixture
def entrance(stack: PrivateStack) -> Iterator[Entrance]:
    """A workspace that somebody may enter, and a worker that records it."""
    with entrance_of(stack) as made:
        stack.start_run_worker()
        yield made


@pytest.fixture
def marker() -> str:
    """An argument that tells a process from all others."""
    return f"session-{uuid.uuid4()}"


def assert_kept(stack: PrivateStack, run: str, marker: str, written: bytes) -> None:
    """The run has ended with a whole record, and nothing of it lives."""
    wait_for(lambda: not runs(marker), "nothing of the session lives")
    wait_final(stack, run)
    assert output(stack, run) == written
    assert stack.get(f"/v1/runs/{run}/loss")["complete"]
    assert_nobody_is_at(stack, run)


def test_a_killed_gateway_leaves_no_run_open_and_no_shell_behind(
    stack: PrivateStack, entrance: Entrance, marker: str
) -> None:
    with entrance.client.begun(STUBBORN.format(marker)) as begun:
        run = entrance.wait_running()
        wait_for(lambda: runs(marker), "the session's program runs")
        entrance.gateway.child.kill()
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    assert begun.process.returncode == 255
    assert any(word in errors for word in (b"closed", b"reset", b"Broken pipe")), errors
    assert_kept(stack, run, marker, b"begun\n")


def test_a_killed_gateway_hangs_the_shell_of_a_terminal_up(
    stack: PrivateStack, entrance: Entrance, marker: str
) -> None:
    with entrance.client.terminal() as terminal:
        terminal.until(b"$ ")
        terminal.type(f"echo be''gun; python3 -c 'import time; time.sleep(600)' {marker}\n")
        terminal.until(b"begun\r\n")
        run = entrance.wait_running()
        wait_for(lambda: runs(marker), "the session's program runs")
        entrance.gateway.child.kill()
        assert terminal.ended() == 255
    wait_for(lambda: not runs(marker), "nothing of the session lives")
    wait_final(stack, run)
    rows = stack.database.rows(
        "select body from run_event join runs_run on number = run_number"
        " where id = %s and kind = 4 and stream = 5 order by sequence",
        run,
    )
    assert b"".join(bytes(body) for (body,) in rows).startswith(terminal.said)
    assert stack.get(f"/v1/runs/{run}/loss")["complete"]


def test_a_killed_client_leaves_no_run_open_and_no_program_behind(
    stack: PrivateStack, entrance: Entrance, marker: str
) -> None:
    with entrance.client.begun(STUBBORN.format(marker)) as begun:
        run = entrance.wait_running()
        begun.process.kill()
        begun.process.wait(LONG_WAIT)
    assert_kept(stack, run, marker, b"begun\n")
    assert entrance.client.said("echo in") == b"in\n"


@pytest.mark.parametrize("at", [("POST", "queued"), ("PATCH", "running")])
def test_a_gateway_killed_before_anybody_was_let_in_leaves_no_run_open(
    stack: PrivateStack, at: tuple[str, str]
) -> None:
    method, status = at
    with (
        relay_to(stack.api_port) as relay,
        entrance_of(stack, SSH_GATEWAY_API_BASE_URL=relay.url) as entrance,
    ):

        def kill(exchange: Exchange) -> None:
            if exchange.method == method and exchange.path.startswith("/v1/runs"):
                entrance.gateway.child.kill()

        relay.hook = kill
        done = entrance.client.command("echo in")
        assert (done.code, done.out) == (255, b"")
        run = entrance.run()
        assert entrance.runs() == [(run, status)]
        # A session that was announced may still begin for a minute; this one is older.
        stack.database.execute(
            "update runs_run set queued_at = queued_at - interval '1 minute' where id = %s", run
        )
        stack.start_run_worker()
        wait_final(stack, run)
        assert_nobody_is_at(stack, run)


def test_a_client_that_stands_still_is_given_up_in_the_end(
    stack: PrivateStack, marker: str
) -> None:
    with entrance_of(stack) as entrance:
        stack.start_run_worker()
        with entrance.client.begun(STUBBORN.format(marker)) as begun:
            run = entrance.wait_running()
            begun.process.send_signal(signal.SIGSTOP)
            assert_kept(stack, run, marker, b"begun\n")


# ---------------------------------------------------------------- in order


def test_a_gateway_that_is_stopped_lets_sessions_end_and_takes_no_new_ones(
    stack: PrivateStack, tmp_path: Path
) -> None:
    with entrance_of(stack, SSH_GATEWAY_DRAIN_MS="300000") as entrance:
        stack.start_run_worker()
        with entrance.client.begun("echo begun; cat; echo ended; exit 3") as begun:
            run = entrance.wait_running()
            entrance.gateway.child.terminate()
            wait_for(lambda: entrance.client.command("true").code == 255, "nobody new is let in")
            assert entrance.gateway.child.exit_code is None
            out, _ = begun.process.communicate(b"told\n", LONG_WAIT)
            assert (begun.process.returncode, out) == (3, b"told\nended\n")
        assert entrance.gateway.child.wait(LONG_WAIT) == 0
        assert wait_final(stack, run)["status"] == "completed"
        assert output(stack, run) == b"begun\ntold\nended\n"


def test_a_session_that_goes_on_too_long_is_told_that_the_gateway_stops(
    stack: PrivateStack, entrance: Entrance, marker: str
) -> None:
    with entrance.client.begun(STUBBORN.format(marker)) as begun:
        run = entrance.wait_running()
        entrance.gateway.child.terminate()
        _, errors = begun.process.communicate(timeout=LONG_WAIT)
    assert begun.process.returncode == 255
    assert b"Received disconnect" in errors
    assert entrance.gateway.child.wait(LONG_WAIT) == 0
    assert_kept(stack, run, marker, b"begun\n")


# ---------------------------------------------------------------- two of them


def test_a_second_gateway_has_the_same_key_and_goes_on_when_the_first_is_killed(
    stack: PrivateStack, entrance: Entrance
) -> None:
    second = start_gateway(stack)
    with short_folder() as folder:
        other = entrance.through(second, folder)
        ours = (entrance.client.folder / "known_hosts").read_text().split()
        theirs = (folder / "known_hosts").read_text().split()
        assert ours[1:3] == theirs[1:3]
        with (
            entrance.client.begun("echo begun; cat") as lost,
            other.begun("echo begun; cat") as kept,
        ):
            entrance.gateway.child.kill()
            lost.process.wait(LONG_WAIT)
            assert lost.process.returncode == 255
            assert kept.process.communicate(b"told\n", LONG_WAIT)[0] == b"told\n"
            assert kept.process.returncode == 0
        assert other.said("echo in") == b"in\n"
    third = start_gateway(stack, SVC_SSH_PORT=str(entrance.gateway.port))
    assert third.host_key == entrance.gateway.host_key
    assert entrance.client.said("echo again") == b"again\n"
    for run, _ in entrance.runs():
        wait_final(stack, run)
        assert stack.get(f"/v1/runs/{run}/loss")["complete"]
