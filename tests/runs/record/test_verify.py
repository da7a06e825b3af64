"""Checking records: 1 000 random mutations of an export, and as many kinds of them in the rows."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from pytest_django.fixtures import Settings

from runs import offline
from runs.agent.record.frames import Kind, Stream
from runs.checks import check_record_signing_key
from runs.models import Run, RunHead, RunLoss
from runs.record import seal, signatures, store
from runs.record.export_format import (
    EVENT_COLUMNS,
    EventRow,
    event_line,
    header_line,
    loss_line,
    seal_line,
)
from runs.record.verify import verify_run
from tests.runs.record_factory import Source, make_run, record

pytestmark = pytest.mark.django_db


def export_of(run: Run) -> list[bytes]:
    """The lines of a run's export."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {EVENT_COLUMNS} FROM run_event "  # noqa: S608
            "WHERE run_number = %s ORDER BY sequence",
            [run.number],
        )
        rows = [EventRow(*row) for row in cursor.fetchall()]
    losses = RunLoss.objects.filter(run_number=run.number).order_by("position")
    return [
        header_line(run),
        *map(event_line, rows),
        *map(loss_line, losses),
        seal_line(RunHead.objects.get(pk=run.number)),
    ]


def rich_run() -> Run:
    """A run whose record has everything: holes, dropped bytes, bytes of any kind, odd metas."""
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    process = source.process(["sh", "-c", "printf 'ü\\377'"])
    for size in (1, 200, 0, 4096):
        source.output(process, random.Random(size).randbytes(size))
    source.event(Kind.NETWORK_SOURCE_OBSERVED, b"\xff\xfe no JSON", sequence=source.sequence + 4)
    source.append()
    source.event(65_535, {"what": "of a later version"}, monotonic_ns=2**64 - 1)
    source.event(
        Kind.TELEMETRY_DROPPED,
        {"toOffset": 5000, "bytes": 703, "reason": "spool-full"},
        process=process,
        stream=Stream.STDOUT,
        offset=4297,
    )
    source.append()
    source.event(
        Kind.FILE_DIFF_ENTRY, {"position": 1, "path": "a", "change": "added"}, body=b"patch"
    )
    source.exited(process)
    source.sealed()
    source.append()
    return Run.objects.get(pk=run.pk)


def mutate(lines: list[bytes], other: list[bytes], dice: random.Random) -> list[bytes]:
    """The lines with one thing done to them; not always something that changes them."""
    mutated = list(lines)
    at = dice.randrange(len(mutated))
    match dice.randrange(6):
        case 0:
            line = bytearray(mutated[at])
            line[dice.randrange(len(line))] ^= 1 << dice.randrange(8)
            mutated[at] = bytes(line)
        case 1:
            del mutated[at : at + dice.randrange(1, 4)]
        case 2:
            mutated.insert(at, dice.choice([*lines, *other]))
        case 3:
            to = dice.randrange(len(mutated))
            mutated[at], mutated[to] = mutated[to], mutated[at]
        case 4:
            whole = b"".join(mutated)
            mutated = io.BytesIO(whole[: dice.randrange(len(whole))]).readlines()
        case _:
            cut = dice.randrange(len(other))
            mutated = mutated[:at] + other[cut:]
    return mutated


def test_every_one_of_a_thousand_mutations_of_an_export_is_found() -> None:
    run = rich_run()
    lines, other = export_of(run), export_of(rich_run())
    key = seal.public_key()
    assert offline.verify(lines, public_key=key).ok
    dice = random.Random(20_261_121)
    tried = 0
    while tried < 1000:
        mutated = mutate(lines, other, dice)
        if b"".join(mutated) in (b"".join(lines), b"".join(other)):
            continue  # nothing was changed, or the other run is whole
        tried += 1
        found = offline.verify(mutated, public_key=key)
        assert not found.ok, (tried, found)
        assert found.message


def test_a_sound_record_is_found_sound() -> None:
    run = rich_run()
    found = verify_run(run)
    assert found.ok, found
    public = seal.public_key()
    assert public is not None
    assert found.signed_by == signatures.key_id(public)
    still_open = make_run()
    source = Source(still_open)
    source.open()
    source.started()
    source.append()
    assert verify_run(still_open).ok
    assert offline.verify(export_of(still_open)).ok


ROW_MUTATIONS = {
    "flip a body": (
        (
            "UPDATE run_event SET body = set_byte(body, 0, get_byte(body, 0) # 1) "
            "WHERE run_number = %(run)s AND sequence = 4"
        ),
        4,
    ),
    "flip a meta": (
        (
            "UPDATE run_event SET meta = set_byte(meta, 0, get_byte(meta, 0) # 1) "
            "WHERE run_number = %(run)s AND sequence = 2"
        ),
        2,
    ),
    "flip a link": (
        (
            "UPDATE run_event SET link = set_byte(link, 7, get_byte(link, 7) # 128) "
            "WHERE run_number = %(run)s AND sequence = 5"
        ),
        5,
    ),
    "move the clock": (
        "UPDATE run_event SET wall_us = wall_us + 1 WHERE run_number = %(run)s AND sequence = 3",
        3,
    ),
    "tell another length": (
        "UPDATE run_event SET length = length + 1 WHERE run_number = %(run)s AND sequence = 4",
        4,
    ),
    "drop the first": ("DELETE FROM run_event WHERE run_number = %(run)s AND sequence = 1", 1),
    "drop one": ("DELETE FROM run_event WHERE run_number = %(run)s AND sequence = 5", 5),
    "cut the tail": ("DELETE FROM run_event WHERE run_number = %(run)s AND sequence >= 12", 12),
    "drop everything": ("DELETE FROM run_event WHERE run_number = %(run)s", 1),
    "insert into a hole": (
        (
            "INSERT INTO run_event SELECT run_number, 8, stream_offset, wall_us, monotonic_ns, "
            "process_number, length, kind, stream, method, confidence, link, meta, body "
            "FROM run_event WHERE run_number = %(run)s AND sequence = 4"
        ),
        7,
    ),
    "insert at the end": (
        (
            "INSERT INTO run_event SELECT run_number, 100, stream_offset, wall_us, monotonic_ns, "
            "process_number, length, kind, stream, method, confidence, link, meta, body "
            "FROM run_event WHERE run_number = %(run)s AND sequence = 4"
        ),
        100,
    ),
    "insert at the very end": (
        (
            "INSERT INTO run_event SELECT run_number, 9223372036854775807, stream_offset, wall_us, "
            "monotonic_ns, process_number, length, kind, stream, method, confidence, link, meta, "
            "body FROM run_event WHERE run_number = %(run)s AND sequence = 4"
        ),
        2**63 - 1,
    ),
    "move one elsewhere": (
        (
            "UPDATE run_event SET sequence = CASE sequence WHEN 4 THEN 8 ELSE 4 END "
            "WHERE run_number = %(run)s AND sequence = 4"
        ),
        4,
    ),
    "splice in another run's": (
        (
            "WITH gone AS (DELETE FROM run_event WHERE run_number = %(run)s AND sequence > 4) "
            "INSERT INTO run_event SELECT %(run)s, sequence, stream_offset, wall_us, monotonic_ns, "
            "process_number, length, kind, stream, method, confidence, link, meta, "
            "body FROM run_event WHERE run_number = %(other)s AND sequence > 100"
        ),
        5,
    ),
    "drop a loss span": (
        "DELETE FROM run_loss WHERE run_number = %(run)s AND kind = 'sequence_gap'",
        None,
    ),
    "soften a loss span": (
        "UPDATE run_loss SET count = 1 WHERE run_number = %(run)s AND kind = 'dropped_event'",
        None,
    ),
    "invent a loss span": (
        (
            "INSERT INTO run_loss (run_number, position, kind, reason, detected_via) "
            "VALUES (%(run)s, 9, 'early_close', '', 'gap')"
        ),
        None,
    ),
    "move a checkpoint": (
        (
            "UPDATE run_checkpoint SET chain_head = '\\x00' WHERE run_number = %(run)s "
            "AND sequence = (SELECT min(sequence) FROM run_checkpoint WHERE run_number = %(run)s)"
        ),
        10,
    ),
    "move a checkpoint into a hole": (
        (
            "UPDATE run_checkpoint SET sequence = 8 WHERE run_number = %(run)s "
            "AND sequence = (SELECT min(sequence) FROM run_checkpoint WHERE run_number = %(run)s)"
        ),
        10,
    ),
    "flip the seal": (
        (
            "UPDATE run_head SET seal = set_byte(seal, 20, get_byte(seal, 20) # 1) "
            "WHERE run_number = %(run)s"
        ),
        None,
    ),
    "flip the signature": (
        (
            "UPDATE run_head SET signature = set_byte(signature, 20, get_byte(signature, 20) # 1) "
            "WHERE run_number = %(run)s"
        ),
        None,
    ),
    "take the signature away": (
        (
            "UPDATE run_head SET signature = NULL, public_key = NULL, key_id = '' "
            "WHERE run_number = %(run)s"
        ),
        None,
    ),
    "tell another size of a stream": (
        "UPDATE run_head SET stream_bytes = '{}' WHERE run_number = %(run)s",
        None,
    ),
    "open the record again": (
        "UPDATE run_head SET seal = NULL, sealed_at = NULL WHERE run_number = %(run)s",
        None,
    ),
    "tell another command line": (
        "UPDATE run_process SET argv = '{true}' WHERE run_number = %(run)s",
        2,
    ),
    "tell another parent": (
        "UPDATE run_process SET parent_number = 1 WHERE run_number = %(run)s",
        2,
    ),
    "tell another exit": (
        "UPDATE run_process SET exit_code = 0, exit_signal = 'x' WHERE run_number = %(run)s",
        14,
    ),
    "hide a process": ("DELETE FROM run_process WHERE run_number = %(run)s", 2),
    "invent a process": (
        (
            "INSERT INTO run_process (run_number, process_number, leader, argv, cwd, name, "
            "streams, exit_signal, exit_reason) "
            "VALUES (%(run)s, 2, false, '{}', '', '', '{}', '', '')"
        ),
        None,
    ),
    "tell another patch": (
        "UPDATE run_change SET patch = 'other' WHERE run_number = %(run)s",
        13,
    ),
    "hide a change": ("DELETE FROM run_change WHERE run_number = %(run)s", 13),
    "give the run another mode": (
        "UPDATE runs_run SET mode = 'interactive' WHERE number = %(run)s",
        None,
    ),
}


@pytest.mark.parametrize("name", ROW_MUTATIONS)
def test_what_is_done_to_the_rows_is_found(name: str) -> None:
    run, other = rich_run(), rich_run()
    statement, first_bad = ROW_MUTATIONS[name]
    with connection.cursor() as cursor:
        # The owner of the tables can do this; the chain is there for what triggers cannot prevent.
        cursor.execute("ALTER TABLE run_event DISABLE TRIGGER run_event_append_only")
        cursor.execute(statement, {"run": run.number, "other": other.number})
        assert cursor.rowcount > 0 or "gone" in statement
    run.refresh_from_db()
    found = verify_run(run)
    assert not found.ok
    if first_bad is not None:
        assert found.first_bad == first_bad, found


def test_an_event_behind_the_head_of_a_record_that_goes_on_is_found() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.output(source.process(), b"some")
    source.append()
    assert verify_run(run).ok
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO run_event SELECT run_number, 5, stream_offset, wall_us, monotonic_ns, "
            "process_number, length, kind, stream, method, confidence, link, meta, body "
            "FROM run_event WHERE run_number = %s AND sequence = 3",
            [run.number],
        )
    found = verify_run(run)
    assert (found.ok, found.first_bad) == (False, 5)
    assert "nothing was appended there" in found.message


def test_a_record_made_up_anew_without_the_key_is_found() -> None:
    run = rich_run()
    head = RunHead.objects.get(pk=run.number)
    own = os.urandom(32)
    forged = bytes(head.seal or b"")
    RunHead.objects.filter(pk=run.number).update(
        signature=signatures.sign(forged, private=own),
        public_key=signatures.public_key_of(own),
        key_id=signatures.key_id(signatures.public_key_of(own)),
    )
    assert "another key" in verify_run(run).message
    lines = export_of(run)
    assert offline.verify(lines).ok
    assert "not checked" in offline.verify(lines).message
    assert not offline.verify(lines, public_key=seal.public_key()).ok


def test_without_a_key_records_are_sealed_unsigned(settings: Settings) -> None:
    settings.SVC_RECORD_SIGNING_KEY = ""
    run = rich_run()
    found = verify_run(run)
    assert found.ok
    assert "not signed" in found.message
    assert offline.verify(export_of(run)).ok
    key = signatures.public_key_of(os.urandom(32))
    assert not offline.verify(export_of(run), public_key=key).ok


@pytest.mark.parametrize(
    "junk",
    [b"", b"\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"[" * 100_000, b'{"type":"record"}\n'],
)
def test_what_is_no_export_is_told_so(junk: bytes) -> None:
    found = offline.verify(io.BytesIO(junk))
    assert (found.ok, found.first_bad) == (False, None)


def test_an_export_can_be_checked_without_django_and_database(tmp_path: Path) -> None:
    run = rich_run()
    export = tmp_path / "run.ndjson"
    lines = export_of(run)
    export.write_bytes(b"".join(lines))
    key = base64.b64encode(seal.public_key() or b"").decode()
    code = (
        "import sys; sys.modules['django'] = None; sys.modules['psycopg'] = None\n"
        "from runs import offline; sys.exit(offline.main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, str(export), "--public-key", key]
    sound = subprocess.run(argv, capture_output=True, text=True, check=False, env={})
    assert sound.returncode == 0, sound.stderr
    export.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    argv = [sys.executable, "-m", "runs.offline", str(export)]
    bad = subprocess.run(argv, capture_output=True, text=True, check=False, env={})
    assert bad.returncode == 1
    assert bad.stdout.startswith("event 3: missing")


def test_the_command_says_what_it_found() -> None:
    run = record_of_one()
    told = io.StringIO()
    call_command("verifyrun", str(run.pk), stdout=told)
    assert "is sound" in told.getvalue()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL svc.retention = 'on'")
        cursor.execute("DELETE FROM run_event WHERE run_number = %s AND sequence = 3", [run.number])
    with pytest.raises(CommandError, match="event 3: missing"):
        call_command("verifyrun", str(run.pk))
    told = io.StringIO()
    call_command("recordkey", stdout=told)
    assert base64.b64decode(told.getvalue()) == seal.public_key()


def record_of_one() -> Run:
    run = make_run()
    record(run)
    return run


def test_a_record_that_the_control_plane_ended_is_sound_too() -> None:
    run = make_run()
    source = Source(run)
    source.open()
    source.started()
    source.output(source.process(), b"some")
    source.append()
    assert store.close_early(run.number, reason="container-gone", detail="it was removed")
    assert verify_run(run).ok
    lines = export_of(run)
    assert offline.verify(lines, public_key=seal.public_key()).ok
    assert json.loads(lines[-2])["kind"] == "early_close"


def test_a_missing_key_is_warned_of(settings: Settings) -> None:
    assert check_record_signing_key() == []
    settings.SVC_RECORD_SIGNING_KEY = ""
    (warning,) = check_record_signing_key()
    assert warning.id == "runs.W001"
    with pytest.raises(CommandError, match="not signed"):
        call_command("recordkey")
