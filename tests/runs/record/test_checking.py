"""Holding events against a chain and a seal, one guard at a time. Needs no database."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from runs.agent.record.frames import Kind
from runs.record import chain, signatures
from runs.record.checking import Checked, Fault, Walk, check_seal
from runs.record.export_format import EventRow, loss_digest, row_content

RUN = uuid.UUID(int=7)
PRIVATE, OTHER = bytes(range(32)), bytes(range(1, 33))
PUBLIC = signatures.public_key_of(PRIVATE)
NAME = signatures.key_id(PUBLIC)
HEADER, LOSSES = b"header\n", (b"loss 1\n", b"loss 2\n")


def rows(*sequences: int, sealed: bool = True) -> Iterator[EventRow]:
    """Yield rows that fit together; the last one ends the record."""
    head = chain.genesis(RUN)
    for sequence in sequences:
        kind = Kind.RECORD_SEALED if sealed and sequence == sequences[-1] else Kind.IO_CHUNK
        body = b"x" * sequence
        row = EventRow(sequence, 0, 1, 2, 3, len(body), kind, 2, 1, 1, b"", b"{}", body)
        head = chain.advance(head, row_content(row))
        yield row._replace(link=chain.link(head))


def walked(*sequences: int, sealed: bool = True) -> Walk:
    """Return a walk over such rows."""
    walk = Walk(RUN)
    for row in rows(*sequences, sealed=sealed):
        walk.step(row)
    return walk


def seal(walk: Walk, **values: Any) -> bytes:
    """Return the seal that fits, with these members in place of its own."""
    told = {
        "version": signatures.SEAL_VERSION,
        "runId": str(RUN),
        "headerDigest": hashlib.sha256(HEADER).hexdigest(),
        "events": str(walk.events),
        "lastSequence": str(walk.sequence),
        "chainHead": walk.head.hex(),
        "lossDigest": loss_digest(LOSSES),
    }
    return signatures.canonical({**told, **values})


def checked(walk: Walk, sealed: bytes | None = None, **values: Any) -> Checked:
    """Hold a walk against a seal that is signed as it should be but for ``values``."""
    sealed = seal(walk) if sealed is None else sealed
    given: dict[str, Any] = {
        "header": HEADER,
        "losses": LOSSES,
        "seal": sealed,
        "signature": signatures.sign(sealed, private=PRIVATE),
        "embedded_key": PUBLIC,
        "key_id": NAME,
        "public_key": PUBLIC,
    }
    return check_seal(walk, **{**given, **values})


def fault(walk: Walk, sealed: bytes | None = None, **values: Any) -> tuple[int | None, str]:
    """Return where and what does not fit."""
    with pytest.raises(Fault) as caught:
        checked(walk, sealed, **values)
    return caught.value.sequence, str(caught.value)


# ---------------------------------------------------------------- the chain


def test_events_that_fit_together_are_counted_to_their_end() -> None:
    walk = walked(1, 2, 5)
    assert (walk.sequence, walk.events, walk.ended) == (5, 3, True)
    assert not walked(1, 2, sealed=False).ended
    walk.finish([(3, 4)])


@pytest.mark.parametrize(
    ("sequence", "changes", "where", "message"),
    [
        (
            3,
            {"body": b"xxy"},
            3,
            "this event or the one before it was altered: the chain breaks here",
        ),
        (
            3,
            {"link": bytes(8)},
            3,
            "this event or the one before it was altered: the chain breaks here",
        ),
        (3, {"length": 4}, 3, "its length is not that of its bytes"),
        (3, {"sequence": 2}, 2, "comes twice or out of order"),
        (3, {"sequence": 5}, 3, "missing up to 4, or altered"),
        (3, {"sequence": 4}, 3, "missing up to 3, or altered"),
    ],
)
def test_an_event_that_does_not_follow_the_last_one_is_a_fault(
    sequence: int, changes: dict[str, Any], where: int, message: str
) -> None:
    walk = Walk(RUN)
    given = list(rows(1, 2, 3, sealed=False))
    for row in given[: sequence - 1]:
        walk.step(row)
    with pytest.raises(Fault) as caught:
        walk.step(given[sequence - 1]._replace(**changes))
    assert (caught.value.sequence, str(caught.value)) == (where, f"event {where}: {message}")


def test_nothing_comes_after_the_end() -> None:
    walk = walked(1, 2)
    with pytest.raises(Fault, match=r"^event 3: comes after the end of the record$"):
        walk.step(next(rows(3)))


def test_every_hole_is_declared_and_nothing_that_is_there() -> None:
    with pytest.raises(Fault, match=r"^event 3: missing up to 4, and no loss span declares it$"):
        walked(1, 2, 5).finish([])
    with pytest.raises(
        Fault,
        match=r"^event 2: a loss span declares it missing, but it is "
        "present$",
    ):
        walked(1, 2, 5).finish([(3, 4), (2, 2)])
    with pytest.raises(Fault, match=r"^event 3: missing up to 3"):
        walked(1, 2, 4, 7).finish([(5, 6)])


# ---------------------------------------------------------------- the seal


def test_a_record_as_it_was_sealed_is_sound_and_says_who_signed() -> None:
    assert checked(walked(1, 2)) == Checked(
        True, None, f"2 events, complete and as sealed, signed with {NAME}", NAME
    )
    assert checked(walked(1, 2), embedded_key=None).signed_by == NAME
    unchecked = checked(walked(1, 2), public_key=None)
    assert (unchecked.ok, unchecked.signed_by) == (True, NAME)
    assert unchecked.message.endswith("; the owner of the key was not checked")


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"runId": str(uuid.UUID(int=8))}, None, "the seal is that of another run"),
        ({"headerDigest": "00"}, None, "the description of the run differs from what was sealed"),
        ({"lastSequence": "9"}, 3, "event 3: missing: the record goes to 9"),
        ({"events": "1"}, 2, "event 2: the chain does not end where it was sealed"),
        ({"chainHead": "00"}, 2, "event 2: the chain does not end where it was sealed"),
        ({"lossDigest": "00"}, None, "the loss spans differ from those that were sealed"),
        ({"version": 2}, None, "a seal of an unsupported version"),
    ],
)
def test_each_thing_that_a_seal_says_has_to_fit(
    changes: dict[str, Any], where: int | None, message: str
) -> None:
    walk = walked(1, 2)
    assert fault(walk, seal(walk, **changes)) == (where, message)


def test_a_record_with_a_seal_ends_with_its_end() -> None:
    assert fault(walked(1, 2, sealed=False)) == (
        2,
        "event 2: the record has a seal but does not end with recordSealed",
    )


@pytest.mark.parametrize("sealed", [b"", b"{", b"[]", b"null", b"[" * 100_000])
def test_what_is_no_seal_was_not_written(sealed: bytes) -> None:
    assert fault(walked(1), sealed) == (None, "the seal was altered")


def test_a_seal_in_another_form_was_not_written_so() -> None:
    walk = walked(1)
    spaced = json.dumps(json.loads(seal(walk)), sort_keys=True).encode()
    assert fault(walk, spaced) == (None, "the seal was altered")


@pytest.mark.parametrize(
    "changes",
    [
        {"signature": None},
        {"signature": None, "embedded_key": None, "key_id": ""},
        {"signature": None, "embedded_key": None, "public_key": None},
        {"signature": None, "key_id": "", "public_key": None},
        {"embedded_key": None, "key_id": "", "public_key": None},
    ],
)
def test_what_says_anything_of_a_signature_has_to_have_one(changes: dict[str, Any]) -> None:
    assert fault(walked(1), **changes) == (None, "the seal is not signed, but it should be")


def test_a_record_that_was_never_signed_is_sound_and_says_so() -> None:
    nothing: dict[str, Any] = {
        "signature": None,
        "embedded_key": None,
        "public_key": None,
        "key_id": "",
    }
    found = checked(walked(1), **nothing)
    assert found == Checked(
        True, None, "1 events are consistent and match the seal, which is not signed", ""
    )


def test_another_key_than_the_one_that_has_to_have_signed_is_refused() -> None:
    other = signatures.public_key_of(OTHER)
    assert fault(walked(1), embedded_key=other, key_id="k") == (
        None,
        "the seal was signed with another key: k",
    )
    assert fault(walked(1), embedded_key=other, key_id="")[1].endswith("another key: unnamed")


@pytest.mark.parametrize(
    "changes",
    [
        {"key_id": "another"},
        {"signature": b"x" * 64},
        {"signature": signatures.sign(b"{}", private=PRIVATE)},
    ],
)
def test_the_signature_is_that_of_the_named_key_over_the_seal(changes: dict[str, Any]) -> None:
    assert fault(walked(1), **changes) == (None, "the signature does not match the seal")
