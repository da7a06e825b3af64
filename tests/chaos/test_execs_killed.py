"""Who waits for a command, or gives it input, while something dies: asks again, and has it once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.chaos.records import (
    Program,
    assert_complete,
    holder,
    program,
    ready_workspace,
    wait_stored,
)
from tests.stack.private_stack import OWNER, PrivateStack
from tests.stack.processes import wait_for
from tests.stack.sandboxes import Started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]

PIECES = [f"{number:06d} ".encode() * 200 for number in range(400)]

Kill = Callable[[PrivateStack, str], None]


def kill_api(stack: PrivateStack, run: str) -> None:
    """End the API without a word; it is started again."""
    stack.kill_api()
    stack.start_api()


def kill_worker(stack: PrivateStack, run: str) -> None:
    """End the run worker that is at the run; another one is there."""
    holder(stack, run).kill()


def kill_database(stack: PrivateStack, run: str) -> None:
    """End PostgreSQL in the middle of whatever it does; it is started again."""
    stack.postgres.kill()
    stack.postgres.start()


KILLS = [kill_api, kill_worker, kill_database]


def ask_until(url: str, body: dict[str, Any], **headers: str) -> Any:
    """Ask as a client does that asks again as long as nobody answers; return the body."""
    found: list[Any] = []

    def answered() -> bool:
        try:
            answer = requests.post(url, json=body, headers=headers, timeout=LONG_WAIT)
            if answer.status_code >= 500:
                return False
            assert answer.status_code in (200, 202), answer.text
            found.append(answer.json())
        except requests.RequestException:  # JSON that was cut off as well
            return False
        return True

    wait_for(answered, "an answer")
    return found[0]


def exec_of(stack: PrivateStack, job: Started) -> str:
    """Return where commands are executed."""
    return f"{stack.api}/v1/workspaces/{job.workspace_id}/exec"


@pytest.mark.parametrize("kill", KILLS)
def test_input_that_is_given_while_something_dies_arrives_once(
    stack: PrivateStack, kill: Kill
) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    stack.start_run_worker()
    body = {"ownerUserId": OWNER, "command": ["cat"], "openStdin": True, "background": True}
    run = ask_until(exec_of(stack, job), body, **{"idempotency-key": "cat"})["runId"]
    wait_stored(stack, run, 1)
    half = threading.Event()

    def give() -> None:
        url, offset = f"{stack.api}/v1/runs/{run}/input", 0
        for number, piece in enumerate(PIECES):
            body = {"stdin": piece.decode(), "offset": offset}
            offset += len(piece)
            assert ask_until(url, body)["offset"] == offset
            if number == len(PIECES) // 2:
                half.set()
        ask_until(url, {"end": True})

    client = threading.Thread(target=give)
    client.start()
    assert half.wait(LONG_WAIT)
    kill(stack, run)
    client.join(LONG_WAIT)
    assert not client.is_alive()
    assert_complete(stack, run, Program(["cat"], b"".join(PIECES), ""))


@pytest.mark.parametrize("kill", KILLS)
def test_a_command_that_is_waited_for_while_something_dies_is_executed_once_and_answered(
    stack: PrivateStack, kill: Kill
) -> None:
    job = ready_workspace(stack)
    stack.start_run_worker()
    stack.start_run_worker()
    what = program(4000, seconds=3, code=3, held=True)
    answers: list[Any] = []

    def ask() -> None:
        body = {"ownerUserId": OWNER, "command": what.argv}
        answers.append(ask_until(exec_of(stack, job), body, **{"idempotency-key": "once"}))

    client = threading.Thread(target=ask)
    client.start()
    wait_for(lambda: one_shot(stack), "its run is there")
    ((run,),) = one_shot(stack)
    wait_stored(stack, run, 3)
    kill(stack, run)
    stack.engine.let_go(job)
    client.join(LONG_WAIT)
    (answer,) = answers
    assert answer["runId"] == run
    assert (answer["status"], answer["exitCode"]) == ("failed", 3)
    assert answer["stdout"].encode() == what.output
    assert len(one_shot(stack)) == 1
    assert_complete(stack, run, what, code=3)


def one_shot(stack: PrivateStack) -> list[tuple[str]]:
    """Return the ids of the runs of commands."""
    rows = stack.database.rows("select id::text from runs_run where mode = 'one-shot'")
    return [(str(row[0]),) for row in rows]
