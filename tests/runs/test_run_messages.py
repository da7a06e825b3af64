"""The message of the run queue, and everything that is none."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from pytest_django.fixtures import Settings

from controlplane.work.amqp import MalformedMessage
from runs.run_messages import RUN_REQUESTED, Announcer
from tests.stack.worker_process import declare, eventually, messages_in
from tests.support import queues
from tests.support.waiting import LONG_WAIT

RUN_ID = uuid.UUID("0190163d-8694-739b-aea5-966c26f8ad91")


def test_a_message_holds_the_id_and_nothing_else() -> None:
    assert RUN_REQUESTED.to_bytes(RUN_ID) == b'{"runId": "0190163d-8694-739b-aea5-966c26f8ad91"}'
    assert RUN_REQUESTED.from_bytes(RUN_REQUESTED.to_bytes(RUN_ID)) == RUN_ID


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"runId": null}',
        b'{"runId": 7}',
        b'{"runId": "7"}',
        b'{"jobId": "0190163d-8694-739b-aea5-966c26f8ad91"}',
        b'{"runId": "0190163d-8694-739b-aea5-966c26f8ad91", "more": 1}',
        b"[" * 100_000,
    ],
)
def test_anything_else_belongs_to_the_dead_letters(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        RUN_REQUESTED.from_bytes(body)


def test_a_process_without_room_for_a_thread_stores_its_runs_and_tells_of_them_later(
    settings: Settings, instance_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    announcer = Announcer(0.0)
    first, second = uuid.uuid4(), uuid.uuid4()
    declare(topology)  # the announcer's thread may come to it later than the first look

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refused)
        announcer.announce(first)
    try:
        announcer.announce(second)
        eventually(lambda: len(messages_in(topology.queue)) == 2, what="two messages")
        told = [RUN_REQUESTED.from_bytes(body) for _, body in messages_in(topology.queue)]
        assert told == [first, second]
    finally:
        queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)


def hurry(announcer: Announcer, run_id: uuid.UUID) -> None:
    """Have the message of a run due in a moment: until now there was all the time to withdraw."""
    with announcer._changed:
        announcer._waiting[run_id] = time.monotonic() + 0.2
        announcer._changed.notify()


def test_of_a_run_that_was_withdrawn_nobody_is_told(settings: Settings, instance_id: str) -> None:
    settings.WORKSPACE_RUN_QUEUE = f"runs-{instance_id}-{uuid.uuid4().hex[:8]}"
    topology = RUN_REQUESTED.topology()
    late = Announcer(3600.0)
    first, ended, other = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    RUN_REQUESTED.publish(first)
    try:
        late.announce(ended)
        late.announce(other)
        late.withdraw(ended)
        late.withdraw(first)  # it was told already
        hurry(late, other)
        eventually(lambda: len(messages_in(topology.queue)) == 2, what="two messages")
        told = [RUN_REQUESTED.from_bytes(body) for _, body in messages_in(topology.queue)]
        assert told == [first, other]
        late.announce(first)
        hurry(late, first)
        eventually(lambda: len(messages_in(topology.queue)) == 3, what="another message")
    finally:
        queues.purge_and_delete(settings.RABBITMQ_URL, topology, timeout=LONG_WAIT)
