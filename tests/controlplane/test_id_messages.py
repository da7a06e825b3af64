"""A message names one row, and anything else on its queue is malformed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from pika import BlockingConnection, DeliveryMode, URLParameters

from controlplane.work import amqp
from controlplane.work.id_messages import IdMessage
from tests.support import queues
from tests.support.waiting import LONG_WAIT

ROW = uuid.UUID("0190aaaa-0000-7000-8000-000000000001")


@pytest.fixture
def message() -> Iterator[IdMessage]:
    """A kind of message with a queue of this test's own."""
    queue = f"test-ids-{uuid.uuid4().hex[:12]}"
    with override_settings(TEST_IDS_QUEUE=queue):
        yield IdMessage(kind="test.requested", member="rowId", queue_setting="TEST_IDS_QUEUE")
    queues.purge_and_delete(settings.RABBITMQ_URL, amqp.Topology(queue), timeout=LONG_WAIT)


def fetch(queue: str) -> tuple[dict[str, Any], bytes]:
    """Take the one message of a queue; return its properties and its body."""
    connection = BlockingConnection(URLParameters(settings.RABBITMQ_URL))
    try:
        _, properties, body = connection.channel().basic_get(queue, auto_ack=True)
    finally:
        connection.close()
    assert body is not None
    return vars(properties), body


@pytest.mark.parametrize("dead", [False, True], ids=["queue", "dead letters"])
def test_a_published_message_names_its_row_in_its_body_and_its_properties(
    message: IdMessage, dead: bool
) -> None:
    began = int(time.time())
    message.publish(ROW, dead_letter=dead)
    topology = message.topology()
    properties, body = fetch(topology.dead_letter_queue if dead else topology.queue)
    assert message.from_bytes(body) == ROW
    assert properties["message_id"] == str(ROW)
    assert properties["type"] == "test.requested"
    assert properties["content_type"] == "application/json"
    assert properties["delivery_mode"] == DeliveryMode.Persistent.value
    assert began <= properties["timestamp"] <= time.time()


def test_a_message_is_for_the_queue_unless_it_is_said_to_be_a_dead_letter(
    message: IdMessage,
) -> None:
    message.publish(ROW)
    assert message.from_bytes(fetch(message.topology().queue)[1]) == ROW


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'["rowId"]',
        b'"rowId"',
        b"{}",
        json.dumps({"rowId": str(ROW), "more": 1}).encode(),
        json.dumps({"jobId": str(ROW)}).encode(),
        json.dumps([["rowId", str(ROW)]]).encode(),
        b'{"rowId": "no id"}',
        b'{"rowId": 7}',
        b'{"rowId": null}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_anything_else_is_malformed(body: bytes) -> None:
    message = IdMessage(kind="test", member="rowId", queue_setting="WORKSPACE_BUILD_QUEUE")
    with pytest.raises(amqp.MalformedMessage):
        message.from_bytes(body)
