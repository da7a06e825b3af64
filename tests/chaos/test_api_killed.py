"""The API dies between the commit and the message."""

from __future__ import annotations

import threading

import pytest
import requests

from tests.chaos.verdict import assert_ready
from tests.stack.private_stack import PrivateStack
from tests.stack.processes import suspended, wait_for
from tests.stack.sandboxes import blueprint, started
from tests.support.waiting import LONG_WAIT

pytestmark = [pytest.mark.chaos, pytest.mark.docker, pytest.mark.slow]


def test_a_job_whose_message_was_never_sent_is_found_and_its_client_gets_the_answer(
    stack: PrivateStack,
) -> None:
    worker = stack.start_worker()
    body = stack.request_body(blueprint())
    lost: list[Exception] = []

    def ask() -> None:
        try:
            stack.send(body, key="chaos-key")
        except requests.RequestException as error:
            lost.append(error)

    # A broker that stands still keeps an API without a connection to it between its commit and the
    # message; over one that is kept, the message would be on its way already.
    stack.kill_api()
    stack.start_api()
    with suspended(stack.rabbitmq.pid):
        client = threading.Thread(target=ask)
        client.start()
        wait_for(
            lambda: stack.database.rows(
                "select 1 from workspaces_buildjob where status = 'queued'"
            ),
            "the job is committed",
        )
        stack.kill_api()
        client.join(LONG_WAIT)
    assert lost, "the client got an answer"

    stack.start_api()
    repeated = stack.send(body, key="chaos-key")
    assert repeated.status_code == 202
    assert repeated.headers["idempotency-replayed"] == "true"
    assert (
        stack.database.one("select count(*) from workspaces_buildjob where status <> 'x'")[0] == 2
    )
    assert_ready(stack, started(repeated.json()), claims=1)
    assert worker.says("job_found_by_sweeper") == 1
