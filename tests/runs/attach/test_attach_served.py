"""Attaches at a real gunicorn, to runs whose records are written by the tests."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from websockets.exceptions import ConnectionClosed

from runs.agent.record.frames import Stream
from runs.models import Run, RunInput, RunInputHead
from runs.streaming.event_pages import PAGE_EVENTS
from tests.conftest import OWNER
from tests.runs.attach.attached_client import Attached
from tests.runs.record_factory import Source, make_run, record
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.django_db(transaction=True)

SIZES = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537]
PATTERN = bytes(range(256)) * 1024


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[ApiProcess]:
    """One server for the tests here that leave it as it was."""
    log = tmp_path_factory.mktemp("api") / "api.log"
    with api_process(log, SVC_API_MAX_CONNECTIONS_PER_ADDRESS="120") as process:
        yield process


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[ApiProcess]:
    """A server that waits shortly for a reader: still longer than a busy machine takes to read."""
    with api_process(tmp_path / "impatient.log", SVC_API_WRITE_TIMEOUT_MS="15000") as process:
        yield process


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[ApiProcess]:
    """A server of a test that ends it."""
    with api_process(tmp_path / "mortal.log") as process:
        yield process


def opened(*, terminal: bool = True, owner: str = OWNER, **members: Any) -> tuple[Run, Source, int]:
    """Return a run that takes input, who writes its record, and its process."""
    run = make_run(owner_user_id=owner)
    command: dict[str, Any] = {"executable": "sh", "args": [], "moreInput": True, "stdinBytes": 0}
    if terminal:
        command["terminal"] = {"columns": 80, "rows": 24}
    run.command = {**command, **members}
    run.save()
    source = Source(run)
    source.open()
    source.started()
    process = source.process(streams=["pty"] if terminal else ["stdout", "stderr"])
    source.append()
    return run, source, process


def write(source: Source, process: int, body: bytes, stream: int = Stream.PTY_OUTPUT) -> None:
    """Store output of the process."""
    source.output(process, body, stream=stream)
    source.append()


def end(source: Source, process: int, *, code: int = 0) -> None:
    """Store the end."""
    source.exited(process, code=code)
    source.sealed(code=code)
    source.append()


def given(run: Run) -> bytes:
    """Return the input that was taken."""
    rows = RunInput.objects.filter(run=run).order_by("position")
    return b"".join(
        base64.b64decode(row.detail["data"]) for row in rows if row.detail["kind"] == "bytes"
    )


def kinds(run: Run) -> list[str]:
    """Return what was taken, in its order."""
    return [row.detail["kind"] for row in RunInput.objects.filter(run=run).order_by("position")]


# ---------------------------------------------------------------- output


def test_output_comes_as_it_is_recorded_and_the_end_says_how(api: ApiProcess) -> None:
    run, source, process = opened()
    with Attached(api.port, run.pk) as client:
        expected = b""
        for number in range(10):
            line = f"line {number}\r\n".encode()
            expected += line
            write(source, process, line)
            client.until_output(expected)
        end(source, process, code=3)
        client.rest()
        assert client.closed == (1000, "")
    start, output, ended = client.messages
    assert start == {
        "type": "start",
        "runId": str(run.pk),
        "terminal": {"columns": 80, "rows": 24},
        "inputOpen": True,
        "inputOffset": 0,
    }
    assert output == {"type": "output", "stream": "pty", "offset": 0}
    assert (ended["type"], ended["status"], ended["exitCode"]) == ("end", "failed", 3)


def test_a_run_that_has_ended_is_replayed_and_ends(api: ApiProcess) -> None:
    run = make_run()
    record(run, [b"hello ", b"world\n"])
    with Attached(api.port, run.pk) as client:
        client.rest()
        assert client.closed == (1000, "")
    assert bytes(client.output["stdout"]) == b"hello world\n"
    assert client.named("end")["exitCode"] == 0
    assert client.named("start")["inputOpen"] is False


def test_both_outputs_of_a_command_without_a_terminal_come_in_their_order(api: ApiProcess) -> None:
    run, source, process = opened(terminal=False)
    for body, stream in [(b"one", Stream.STDOUT), (b"no", Stream.STDERR), (b"two", Stream.STDOUT)]:
        write(source, process, body, stream)
    end(source, process)
    with Attached(api.port, run.pk) as client:
        client.rest()
    told = [(each["stream"], each["offset"]) for each in client.messages if "stream" in each]
    assert told == [("stdout", 0), ("stderr", 0), ("stdout", 3)]
    assert {name: bytes(each) for name, each in client.output.items()} == {
        "stdout": b"onetwo",
        "stderr": b"no",
    }


def test_a_hole_in_the_record_shows_in_the_offset_of_what_follows(api: ApiProcess) -> None:
    run, source, process = opened()
    source.output(process, b"before", stream=Stream.PTY_OUTPUT)
    source.output(process, b"behind", stream=Stream.PTY_OUTPUT, offset=1000)
    source.append()
    end(source, process)
    with Attached(api.port, run.pk) as client:
        client.rest()
    assert client.holes == [("pty", 6, 1000)]
    assert bytes(client.output["pty"]) == b"beforebehind"


@pytest.mark.parametrize("size", SIZES)
def test_output_is_the_same_bytes_from_any_of_them_on(api: ApiProcess, size: int) -> None:
    run, source, process = opened()
    content = PATTERN[:size]
    for at in range(0, size, 5000):
        source.output(process, content[at : at + 5000], stream=Stream.PTY_OUTPUT)
    source.append()
    end(source, process)
    for after in {0, size // 2, max(0, size - 1), size}:
        with Attached(api.port, run.pk, f"?after={after}") as client:
            client.rest()
        found = hashlib.sha256(client.output["pty"]).digest()
        assert found == hashlib.sha256(content[after:]).digest()
        if after < size:
            assert client.named("output")["offset"] == after


def test_one_large_chunk_is_sent_in_parts(api: ApiProcess) -> None:
    run, source, process = opened()
    content = os.urandom(1024 * 1024)
    write(source, process, content)
    end(source, process)
    with Attached(api.port, run.pk, "?after=300000") as client:
        client.rest()
    assert bytes(client.output["pty"]) == content[300000:]


def test_many_events_that_are_no_output_are_passed_by(api: ApiProcess) -> None:
    run, source, process = opened()
    write(source, process, b"one")
    for number in range(6 * PAGE_EVENTS):
        source.event(10, {"reason": str(number)})
    source.append()
    write(source, process, b"two")
    end(source, process)
    with Attached(api.port, run.pk) as client:
        client.rest()
    assert bytes(client.output["pty"]) == b"onetwo"


def test_who_comes_back_misses_nothing_and_sees_nothing_twice(api: ApiProcess) -> None:
    run, source, process = opened(terminal=False)
    expected = {"stdout": b"", "stderr": b""}
    found = {"stdout": b"", "stderr": b""}
    for number in range(12):
        query = f"?after={len(found['stdout'])}&afterStderr={len(found['stderr'])}"
        with Attached(api.port, run.pk, query) as client:
            for name, stream in (("stdout", Stream.STDOUT), ("stderr", Stream.STDERR)):
                body = f"{name} {number}\n".encode() * (1 + number * 300)
                expected[name] += body
                write(source, process, body, stream)
            # Somewhere in the middle of what follows, on one stream more than on the other.
            client.until(lambda client: len(client.output["stdout"]) > 4)
            client.break_off()
            for name in found:
                found[name] += bytes(client.output[name])
    end(source, process)
    query = f"?after={len(found['stdout'])}&afterStderr={len(found['stderr'])}"
    with Attached(api.port, run.pk, query) as client:
        client.rest()
    assert {name: found[name] + bytes(client.output[name]) for name in found} == expected


def test_latest_begins_with_what_is_yet_to_come(api: ApiProcess) -> None:
    run, source, process = opened()
    write(source, process, b"old")
    with Attached(api.port, run.pk, "?after=latest") as client:
        client.until(lambda client: bool(client.messages))
        write(source, process, b"new")
        client.until_output(b"new")
    assert client.named("output")["offset"] == 3


# ---------------------------------------------------------------- input


def test_input_is_taken_byte_for_byte_however_it_is_cut(api: ApiProcess) -> None:
    run, _, _ = opened()
    pieces = [PATTERN[:size] for size in SIZES]
    with Attached(api.port, run.pk) as client:
        for piece in pieces:
            client.socket.send(piece)
        client.socket.send([PATTERN[at : at + 7000] for at in range(0, 50_000, 7000)])
        client.say("input-end")
    # What was sent before the client said goodbye counts.
    expected = b"".join(pieces) + PATTERN[:56_000]
    assert hashlib.sha256(given(run)).digest() == hashlib.sha256(expected).digest()
    head = RunInputHead.objects.get(pk=run.pk)
    assert (head.received, head.ended) == (len(expected), True)


def test_sizes_signals_and_input_are_taken_in_their_order(api: ApiProcess) -> None:
    run, _, _ = opened()
    with Attached(api.port, run.pk) as client:
        client.say("resize", columns=100, rows=30)
        client.socket.send(b"ls\n")
        client.say("signal", signal="INT")
        client.socket.send(b"exit\n")
    rows = RunInput.objects.filter(run=run).order_by("position")
    assert [row.detail["kind"] for row in rows] == ["resize", "bytes", "signal", "bytes"]
    assert rows[0].detail == {"kind": "resize", "columns": 100, "rows": 30}
    assert rows[2].detail["signal"] == "INT"


def test_input_that_is_sent_again_is_taken_once(api: ApiProcess) -> None:
    run, _, _ = opened()
    with Attached(api.port, run.pk) as client:
        client.socket.send(b"hello ")
    with Attached(api.port, run.pk) as client:
        client.until(lambda client: bool(client.messages))
        assert client.named("start")["inputOffset"] == 6
        client.say("input", offset=3)
        client.socket.send(b"lo wo")
        client.socket.send(b"rld")
    assert given(run) == b"hello world"


def test_what_was_sent_before_the_connection_broke_is_taken(api: ApiProcess) -> None:
    run, _, _ = opened()
    client = Attached(api.port, run.pk)
    client.socket.send(b"exit\n")
    client.break_off()
    eventually(lambda: given(run) == b"exit\n", what="the input is taken")


def test_input_that_a_program_does_not_read_is_taken_up_to_a_limit(api: ApiProcess) -> None:
    run, source, process = opened()
    with Attached(api.port, run.pk) as client, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(client.socket.send, (PATTERN[:65536] for _ in range(400)))
        eventually(lambda: len(given(run)) > 3 * 1024**2, what="most of what is allowed is taken")
        # The rest is more than what lies on the way to the API: nobody has taken it.
        assert not sending.done()
        end(source, process)
        with pytest.raises(ConnectionClosed):
            sending.result(LONG_WAIT)
    assert len(given(run)) <= 4 * 1024**2


def test_a_signal_passes_input_that_nobody_reads(api: ApiProcess) -> None:
    run, _, _ = opened()
    full = base64.b64encode(bytes(4 * 1024**2)).decode()
    row = {"kind": "bytes", "offset": 0, "data": full}
    RunInput.objects.create(run=run, position=1, size=4 * 1024**2, detail=row)
    RunInputHead.objects.create(run=run, last_position=1, received=4 * 1024**2)
    with Attached(api.port, run.pk, close_timeout=1) as client:
        client.socket.send(b"more")
        client.say("signal", signal="INT")
        eventually(lambda: kinds(run) == ["bytes", "signal"], what="the signal is taken")
        RunInput.objects.filter(run=run, position=1).delete()
        eventually(lambda: given(run) == b"more", what="the input is taken")


def test_input_behind_the_end_of_the_run_is_nothing(api: ApiProcess) -> None:
    run, source, process = opened()
    with Attached(api.port, run.pk) as client:
        client.until(lambda client: bool(client.messages))
        end(source, process)
        with suppress(ConnectionClosed):  # the goodbye may be here already
            client.socket.send(b"too late")
        client.rest()
        assert client.closed == (1000, "")
    assert given(run) == b""


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ('{"type": "dance"}', 400, "validation-failed"),
        ("{}", 400, "validation-failed"),
        ("[]", 400, "validation-failed"),
        ("no json", 400, "malformed-json"),
        ('{"type": "resize", "columns": 0, "rows": 1}', 400, "validation-failed"),
        ('{"type": "resize", "columns": 80}', 400, "validation-failed"),
        ('{"type": "signal", "signal": "SEGV"}', 400, "validation-failed"),
        ('{"type": "input-end", "now": true}', 400, "validation-failed"),
        ('{"type": "input", "offset": 7}', 409, "input-gap"),
    ],
)
def test_a_message_that_makes_no_sense_is_told_and_closes_behind_what_came_before(
    api: ApiProcess, said: str, status: int, code: str
) -> None:
    run, _, _ = opened()
    with Attached(api.port, run.pk) as client:
        client.socket.send(b"good")
        client.socket.send(said)
        client.socket.send(b"bad")
        client.rest()
        assert client.closed == (4000 + status, code)
    problem = client.named("error")["problem"]
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["_tag"].startswith("Run")
    assert given(run) == b"good"


def test_input_for_a_command_that_takes_none_is_refused(api: ApiProcess) -> None:
    run, source, process = opened(moreInput=False)
    with Attached(api.port, run.pk) as client:
        write(source, process, b"shown")
        client.until_output(b"shown")
        client.socket.send(b"typed")
        client.rest()
        assert client.closed == (4409, "input-not-open")


# ---------------------------------------------------------------- the service


def test_input_is_taken_once_and_output_goes_on_when_connections_to_the_database_are_cut(
    api: ApiProcess,
) -> None:
    run, source, process = opened()
    with Attached(api.port, run.pk) as client:
        typed = shown = b""
        for number in range(3):
            cut_connections()
            typed += f"typed {number} ".encode()
            client.socket.send(f"typed {number} ".encode())
            shown += f"shown {number} ".encode()
            write(source, process, f"shown {number} ".encode())
            client.until_output(shown)
            await_given(run, typed)


def cut_connections() -> None:
    """End all connections to the database but the test's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def await_given(run: Run, expected: bytes) -> None:
    """Wait until so much input is taken."""
    eventually(lambda: given(run) == expected, what=f"{expected!r} is taken")


def test_when_the_service_ends_clients_are_told_to_come_back(mortal: ApiProcess) -> None:
    run, source, process = opened()
    write(source, process, b"before")
    with Attached(mortal.port, run.pk) as client:
        client.until_output(b"before")
        client.socket.send(b"typed")
        mortal.process.send_signal(signal.SIGTERM)
        client.rest()
        assert client.closed[0] == 1001
    assert mortal.stop() == 0


def test_a_worker_that_is_killed_loses_no_output(mortal: ApiProcess) -> None:
    api = mortal
    run, source, process = opened()
    write(source, process, b"before ")
    with Attached(api.port, run.pk) as client:
        client.until_output(b"before ")
        (pid,) = api.worker_pids()
        os.kill(pid, signal.SIGKILL)
        client.rest()
    write(source, process, b"behind")
    eventually(lambda: pid not in api.worker_pids() and api.worker_pids(), what="another worker")
    end(source, process)
    with Attached(api.port, run.pk, f"?after={len(client.output['pty'])}") as again:
        again.rest()
    assert bytes(client.output["pty"] + again.output["pty"]) == b"before behind"


def test_a_client_that_takes_nothing_is_cut_off_with_its_place_and_holds_up_nobody(
    impatient: ApiProcess,
) -> None:
    api = impatient
    run, source, process = opened()
    content = os.urandom(4 * 1024**2)
    for at in range(0, len(content), 65536):
        source.output(process, content[at : at + 65536], stream=Stream.PTY_OUTPUT)
    source.append()
    # It stops reading when so much waits, and then its window closes.
    with Attached(api.port, run.pk, max_queue=1) as stuck:
        with Attached(api.port, run.pk) as other:
            other.until_output(content)
        eventually(lambda: "slow_reader" in api.told, what="it is cut off", timeout=LONG_WAIT)
        stuck.rest()
        assert stuck.closed == (4408, "slow-reader")
        found = bytes(stuck.output["pty"])
    assert found == content[: len(found)]
    end(source, process)
    with Attached(api.port, run.pk, f"?after={len(found)}") as again:
        again.rest()
    assert found + bytes(again.output["pty"]) == content


def test_fifty_at_once_each_see_everything_and_take_no_thread(api: ApiProcess) -> None:
    run, source, process = opened()
    clients = [Attached(api.port, run.pk) for _ in range(50)]
    try:
        expected = b""
        for number in range(5):
            expected += f"{number}\n".encode()
            write(source, process, f"{number}\n".encode())
        for client in clients:
            client.until_output(expected)
        assert api.get("/healthz")[0] == 200
        for number, client in enumerate(clients):
            client.socket.send(bytes([number]))
        eventually(lambda: sorted(given(run)) == list(range(50)), what="all of it is taken")
        end(source, process)
        for client in clients:
            client.rest()
            assert client.named("end")["status"] == "completed"
    finally:
        for client in clients:
            client.close()


def test_an_idle_attach_takes_little_memory(api: ApiProcess) -> None:
    run, source, process = opened()
    write(source, process, b"prompt> ")
    clients = []
    try:
        for _ in range(5):
            clients.append(Attached(api.port, run.pk))
            clients[-1].until_output(b"prompt> ")
        before = api.resident_bytes()
        for _ in range(50):
            clients.append(Attached(api.port, run.pk))
            clients[-1].until_output(b"prompt> ")
        assert (api.resident_bytes() - before) / 50 <= 64 * 1024
    finally:
        for client in clients:
            client.close()


def test_an_address_has_as_many_as_it_has_streams(tmp_path: Path) -> None:
    run, _, _ = opened()
    with api_process(tmp_path / "few.log", SVC_API_MAX_CONNECTIONS_PER_ADDRESS="4") as few:
        clients = [Attached(few.port, run.pk) for _ in range(2)]
        status, body = handshake_of(few, run)
        assert (status, json.loads(body)["code"]) == (503, "too-many-streams")
        clients.pop().close()
        eventually(lambda: handshake_of(few, run)[0] == 101, what="there is room again")
        clients.pop().close()


def handshake_of(api: ApiProcess, run: Run) -> tuple[int, bytes]:
    """Return the status and body of a handshake by hand."""
    from tests.runs.attach.test_attach_handshake import asked

    return asked(api, f"/v1/runs/{run.pk}/attach")
