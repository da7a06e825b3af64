"""Many channels of one session: independent of each other, bounded by windows, one record."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record.frames import Kind, Stream
from runs.agent.record.repair import repair
from runs.agent.session.channel import (
    INITIAL_WINDOW,
    MAX_DATA,
    WINDOW,
    FromClient,
    ToClient,
    encode_frame,
)
from tests.runs.agent.booted import Workspace, eventually
from tests.runs.agent.connected import ORIGIN, PTY, Session
from tests.runs.agent.recorded import Runs, is_alive

Opener = Callable[..., Session]
REQUESTS = [
    b'{"kind": "command", "argv": ["cat"], "pty": null, "env": {}}',
    b'{"kind": "exec", "command": "cat", "pty": {"columns": 9, "rows": 9, "term": "x"}, "env": {}}',
    b'{"kind": "exec", "command": "yes | head -c 9000000", "pty": null, "env": {}}',
    b'{"kind": "command", "argv": ["nope"], "pty": null, "env": {}}',
    b'{"kind": "forward", "host": "localhost", "port": 1}',
    b'{"kind": "forward", "host": "no.such.name.invalid", "port": 1}',
    b'{"kind": "subsystem", "name": "nope", "env": {}}',
    b'{"kind": "shell"}',
    b"[" * 5000,
]


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    """A workspace in which runs can be started."""
    return Runs(workspace)


@pytest.fixture
def connect(runs: Runs) -> Iterator[Opener]:
    """Opens sessions and closes what a test left open."""
    opened: list[Session] = []

    def open_session(**members: Any) -> Session:
        made = Session(runs, **members)
        opened.append(made)
        assert made.until(ToClient.READY)["spoolId"] or made.spec["record"] is None
        return made

    yield open_session
    for made in opened:
        if made.process.poll() is None:
            made.process.terminate()
        made.end()


def test_the_record_is_there_before_the_first_channel_and_may_have_none(connect: Opener) -> None:
    session = connect(origin=ORIGIN)
    record = session.record()
    assert record.metas(Kind.RECORD_STARTED)[0]["origin"] == ORIGIN
    assert (record.seal["reason"], record.seal["exit"]) == ("ended", None)
    assert not record.of(Kind.PROCESS_STARTED)


def test_each_channel_is_a_process_of_the_one_record(connect: Opener) -> None:
    session = connect()
    asked = [session.open("exec", command=f"echo {number}; exit {number}") for number in range(8)]
    asked += [session.open("shell", pty=PTY)]
    asked[-1].write(b"exit 9\r")
    for number, channel in enumerate(asked):
        assert channel.until(ToClient.EXIT)["code"] == (number if number < 8 else 9)
    record = session.record()
    for channel in asked[:-1]:
        process = channel.until(ToClient.OPENED)["process"]
        assert record.stream(Stream.STDOUT, process) == channel.output()
    shown = [(meta["channel"], meta["kind"]) for meta in record.metas(Kind.PROCESS_STARTED)]
    assert shown == [(number, "exec") for number in range(1, 9)] + [(9, "shell")]
    assert all(meta["leader"] for meta in record.metas(Kind.PROCESS_STARTED))


def test_the_exit_of_the_record_is_that_of_the_program_started_last(connect: Opener) -> None:
    session = connect()
    first = session.command("sh", "-c", "read line; exit 1")
    last = session.command("sh", "-c", "exit 2")
    assert last.until(ToClient.EXIT)["code"] == 2
    first.send(FromClient.EOF)
    assert first.until(ToClient.EXIT)["code"] == 1
    record = session.record()
    assert (record.seal["exit"]["code"], record.seal["reason"]) == (2, "ended")


def test_a_channel_that_nobody_reads_holds_up_no_other_and_loses_nothing(
    runs: Runs, connect: Opener
) -> None:
    session = connect()
    slow = session.command("sh", "-c", "head -c 5000000 /dev/zero; touch written; echo end")
    slow.grants = False
    while len(slow.output()) < INITIAL_WINDOW:
        assert session.receive()
    quick = session.command("sh", "-c", "head -c 5000000 /dev/zero; cat")
    quick.write(b"still here")
    quick.send(FromClient.EOF)
    assert quick.until(ToClient.EXIT)["code"] == 0
    assert quick.output() == bytes(5_000_000) + b"still here"
    assert len(slow.output()) == INITIAL_WINDOW
    assert not (runs.workspace.directory / "written").exists()
    slow.grants = True
    slow.grant(INITIAL_WINDOW)
    assert slow.until(ToClient.EXIT)["code"] == 0
    assert slow.output() == bytes(5_000_000) + b"end\n"
    assert session.record().stream(Stream.STDOUT, 1) == slow.output()


def test_a_window_is_kept_to_the_byte_and_shared_by_both_streams(connect: Opener) -> None:
    session = connect()
    script = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait"
    both = session.command("sh", "-c", script)
    both.grants = False
    while _size(both) < INITIAL_WINDOW:
        assert session.receive()
    both.grant(12345)
    while _size(both) < INITIAL_WINDOW + 12345:
        assert session.receive()
    other = session.command("echo", "other")
    other.until(ToClient.EXIT)
    assert _size(both) == INITIAL_WINDOW + 12345
    both.grants = True
    both.grant(INITIAL_WINDOW)
    both.until(ToClient.EXIT)
    assert (both.output(), both.output(ToClient.STDERR)) == (bytes(3_000_000), bytes(3_000_000))


def test_what_a_program_leaves_behind_waits_for_the_window_and_its_exit_comes_after(
    connect: Opener,
) -> None:
    session = connect()
    left = session.command("sh", "-c", f"head -c {INITIAL_WINDOW + 60000} /dev/zero; exit 5")
    left.grants = False
    while len(left.output()) < INITIAL_WINDOW:
        assert session.receive()
    eventually(lambda: session.runs.record(session.run_id).metas(Kind.PROCESS_EXITED))
    assert not left.is_over
    left.grant(59_999)
    while len(left.output()) < INITIAL_WINDOW + 59_999:
        assert session.receive()
    assert not left.is_over
    left.grant(1)
    assert left.until(ToClient.EXIT)["code"] == 5
    assert left.output() == bytes(INITIAL_WINDOW + 60_000)


def test_input_is_granted_as_the_program_takes_it(connect: Opener) -> None:
    session = connect()
    content = os.urandom(3 * INITIAL_WINDOW)
    copy = session.command("sh", "-c", "cat > copy")
    copy.write(content)
    copy.send(FromClient.EOF)
    assert copy.until(ToClient.EXIT)["code"] == 0
    assert (session.runs.workspace.directory / "copy").read_bytes() == content
    assert session.record().stream(Stream.STDIN) == content


def test_input_in_many_little_pieces_interleaved_reaches_each_program_whole(
    connect: Opener,
) -> None:
    session = connect()
    copies = [session.command("cat") for _ in range(5)]
    given = {copy.number: b"" for copy in copies}
    chance = random.Random(4)
    for _ in range(3000):
        copy = chance.choice(copies)
        data = chance.randbytes(chance.choice([1, 2, 3, 50, 5000]))
        given[copy.number] += data
        copy.write(data)
    for copy in copies:
        copy.send(FromClient.EOF)
    for copy in copies:
        assert copy.until(ToClient.EXIT)["code"] == 0
        assert copy.output() == given[copy.number]


def test_more_input_than_the_window_breaks_the_protocol(connect: Opener) -> None:
    session = connect()
    deaf = session.command("sleep", "600")
    for _ in range(INITIAL_WINDOW // MAX_DATA):
        deaf.send(FromClient.DATA, bytes(MAX_DATA))
    other = session.command("true")
    assert other.until(ToClient.EXIT)["code"] == 0
    deaf.send(FromClient.DATA, b"!" * 70000)
    assert "takes" in session.until(ToClient.ERROR)["message"]
    assert deaf.until(ToClient.EXIT)["signal"] == "SIGHUP"


def test_frames_for_a_channel_that_is_over_have_crossed_its_end(connect: Opener) -> None:
    session = connect()
    over = session.command("true")
    over.until(ToClient.EXIT)
    for kind in (FromClient.DATA, FromClient.EOF, FromClient.CLOSE, FromClient.SIGNAL):
        over.send(kind, b"x")
    over.send(FromClient.WINDOW, WINDOW.pack(1))
    assert session.command("true").until(ToClient.EXIT)["code"] == 0


def test_closing_a_channel_ends_its_program_and_no_other(connect: Opener) -> None:
    session = connect(graceSeconds=20)
    stays = session.command("cat")
    closed = session.command("sh", "-c", "trap 'echo hup; exit 3' HUP; echo here; read line")
    closed.until_shown(b"here")
    closed.send(FromClient.CLOSE)
    closed.send(FromClient.CLOSE)
    assert closed.until(ToClient.EXIT)["code"] == 3
    assert closed.output() == b"here\n"
    stays.write(b"still here")
    stays.send(FromClient.EOF)
    assert stays.until(ToClient.EXIT)["code"] == 0
    assert stays.output() == b"still here"
    record = session.record()
    assert record.stream(Stream.STDOUT, 2) == b"here\nhup\n"
    assert record.seal["reason"] == "ended"


def test_a_closed_channel_whose_program_ignores_it_is_killed_after_the_grace(
    connect: Opener,
) -> None:
    session = connect(graceSeconds=0.2)
    stays = session.command("cat")
    deaf = session.command("sh", "-c", "trap '' HUP; echo here; sleep 600")
    deaf.until_shown(b"here")
    deaf.send(FromClient.CLOSE)
    assert deaf.until(ToClient.EXIT)["signal"] == "SIGKILL"
    stays.send(FromClient.EOF)
    assert stays.until(ToClient.EXIT)["code"] == 0


def test_all_programs_of_a_client_that_is_gone_are_hung_up_on(runs: Runs, connect: Opener) -> None:
    session = connect(graceSeconds=0.3)
    script = "echo $$ > {0}; {1}; echo here; exec sleep 600"
    for number, trap in enumerate(("true", "trap '' HUP", "true")):
        channel = session.command("sh", "-c", script.format(number, trap), pty=PTY)
        channel.until_shown(b"here")
    record = session.record()
    ends = {event.process: meta["signal"] for event, meta in _exits(record)}
    assert ends == {1: "SIGHUP", 2: "SIGKILL", 3: "SIGHUP"}
    assert record.seal["reason"] == "stopped"
    assert not [n for n in range(3) if is_alive(int(runs.workspace.read(str(n))))]


def test_too_many_channels_are_refused(connect: Opener) -> None:
    session = connect()
    channels = [session.open("command", argv=["sleep", "600"]) for _ in range(257)]
    assert channels[-1].until(ToClient.REFUSED)["code"] == "too-many"
    channels[0].send(FromClient.SIGNAL, b"KILL")
    channels[0].until(ToClient.EXIT)
    assert session.command("true").until(ToClient.EXIT)["code"] == 0


def test_without_a_record_everything_works_and_nothing_is_left(runs: Runs, connect: Opener) -> None:
    session = connect(recorded=False)
    shell = session.open("shell", pty=PTY)
    shell.write(b"exit 3\r")
    copy = session.command("cat")
    copy.write(bytes(3_000_000))
    copy.send(FromClient.EOF)
    assert shell.until(ToClient.EXIT)["code"] == 3
    assert copy.until(ToClient.EXIT)["code"] == 0
    assert copy.output() == bytes(3_000_000)
    left = session.command("sh", "-c", "echo $$ > pid; echo here; exec sleep 600")
    left.until_shown(b"here")
    assert session.end() == 0
    assert not is_alive(int(runs.workspace.read("pid")))
    assert not runs.root.exists()


def test_an_idle_session_needs_next_to_no_processor(connect: Opener) -> None:
    session = connect()
    session.open("shell", pty=PTY).until_shown(b"$")

    def rested() -> bool:
        before = _cpu_seconds(session.process.pid)
        time.sleep(2)  # what is measured, and not a wait for anything
        return _cpu_seconds(session.process.pid) - before <= 0.04

    eventually(rested)  # what is left of the beginning may take a while


@pytest.mark.parametrize("seed", range(12))
def test_no_frames_whatsoever_bring_the_session_down(connect: Opener, seed: int) -> None:
    session = connect(graceSeconds=0.2)
    chance = random.Random(seed)
    opened = 0
    for _ in range(60):
        if not opened or chance.random() < 0.3:
            opened += 1
            frame = encode_frame(FromClient.OPEN, opened, chance.choice(REQUESTS))
        else:
            frame = _some_frame(chance, chance.randrange(1, opened + 1))
        if chance.random() < 0.02:
            place = chance.randrange(len(frame))
            frame = frame[:place] + chance.randbytes(1) + frame[place + 1 :]
        try:
            session.send_raw(frame)
        except BrokenPipeError:
            break
    assert session.process.stdin is not None
    session.process.stdin.close()
    while session.receive():
        pass
    record = session.record()
    assert record.seal["reason"] in ("ended", "stopped")
    assert len(record.of(Kind.PROCESS_EXITED)) == len(record.of(Kind.PROCESS_STARTED))


def _some_frame(chance: random.Random, channel: int) -> bytes:
    payloads = {
        FromClient.DATA: chance.randbytes(chance.choice([0, 1, 70_000])),
        FromClient.EOF: b"",
        FromClient.RESIZE: b'{"columns": 80, "rows": 24}',
        FromClient.SIGNAL: chance.choice([b"INT", b"CONT", b"nope", b"\xff"]),
        FromClient.WINDOW: WINDOW.pack(chance.randrange(1 << 20)),
        FromClient.CLOSE: b"",
    }
    kind = chance.choice(list(payloads))
    return encode_frame(kind, channel, payloads[kind])


def _size(channel: Any) -> int:
    return len(channel.output()) + len(channel.output(ToClient.STDERR))


def _exits(record: Any) -> Any:
    return zip(record.of(Kind.PROCESS_EXITED), record.metas(Kind.PROCESS_EXITED), strict=True)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_session_that_was_killed_is_sealed_with_what_is_known_of_its_programs(
    runs: Runs, connect: Opener
) -> None:
    session = connect()
    session.command("sleep", "600")
    last = session.command("sh", "-c", "exit 6")
    last.until(ToClient.EXIT)
    eventually(lambda: runs.record(session.run_id).of(Kind.PROCESS_EXITED))
    empty = connect()
    for killed in (session, empty):
        killed.process.kill()
        killed.process.wait()
        assert repair(str(runs.root), killed.run_id)
    seal = runs.record(session.run_id).seal
    assert (seal["reason"], seal["exit"]["code"]) == ("recorder-lost", 6)
    seal = runs.record(empty.run_id).seal
    assert (seal["reason"], seal["exit"]) == ("recorder-lost", None)
