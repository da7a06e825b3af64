"""The message of the run queue, and everything that is none."""

from __future__ import annotations

import uuid

import pytest

from controlplane.work.amqp import MalformedMessage
from runs.run_messages import RUN_REQUESTED

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
