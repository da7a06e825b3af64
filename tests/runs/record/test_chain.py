"""The chain: pinned values, so that records of today can be checked in ten years."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest

from runs.agent.record.frames import Event, content_of
from runs.record import chain
from runs.record.export_format import EventRow, event_of, row_content
from tests.runs.record_factory import START_US

RUN = uuid.UUID("0190b0a0-0000-7000-8000-000000000001")
EVENT = Event(1, START_US, 5, 4, 1, 1, 1, 2, 0, b"", b"hello\n")


def test_the_chain_starts_with_the_run_and_goes_on_with_each_event() -> None:
    start = hashlib.sha256(b"svc-run-record-v1\0" + RUN.bytes).digest()
    assert chain.genesis(RUN) == start
    head = chain.advance(start, content_of(EVENT))
    assert head == hashlib.sha256(start + content_of(EVENT)).digest()
    assert chain.link(head) == head[:8]


def test_its_values_never_change() -> None:
    head = chain.advance(chain.genesis(RUN), content_of(EVENT))
    assert chain.genesis(RUN).hex()[:16] == "cb4f9c9a98b7bdad"
    assert head.hex()[:16] == "76bb78684fb307ec"


@pytest.mark.parametrize("member", range(len(EVENT)))
def test_every_member_of_an_event_counts(member: int) -> None:
    changed: list[Any] = list(EVENT)
    changed[member] += b"x" if isinstance(changed[member], bytes) else 1
    start = chain.genesis(RUN)
    altered = chain.advance(start, content_of(Event(*changed)))
    assert altered != chain.advance(start, content_of(EVENT))


def test_bytes_do_not_move_between_meta_and_body_unseen() -> None:
    one = content_of(EVENT._replace(meta=b"ab", body=b"c"))
    two = content_of(EVENT._replace(meta=b"a", body=b"bc"))
    assert one != two


def test_a_row_holds_exactly_what_was_chained() -> None:
    row = EventRow(1, 0, START_US, 5, 1, 6, -1, 2, 1, 1, b"", b"", b"hello\n")
    assert event_of(row) == EVENT._replace(kind=65_535)
    assert row_content(row) == content_of(EVENT._replace(kind=65_535))
