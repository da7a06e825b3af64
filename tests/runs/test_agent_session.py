"""Interactive runs: the terminal, the channel, and clients that are slow, hostile or gone."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runs.agent.frames import Kind, Stream
from tests.runs.booted import Workspace, eventually
from tests.runs.recorded import (
    DATA,
    DETACH,
    EOF,
    ERROR,
    EXIT,
    READY,
    RESIZE,
    SIGNAL,
    SPEC,
    STDERR,
    STDOUT,
    Runs,
    Session,
    is_alive,
    meta_of,
)

Opener = Callable[..., Session]
SHELL = ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    """A workspace in which runs can be started."""
    return Runs(workspace)


@pytest.fixture
def session(runs: Runs) -> Iterator[Opener]:
    """Opens sessions and closes what a test left open."""
    opened: list[Session] = []

    def open_session(*argv: str, **members: Any) -> Session:
        made = Session(runs, *argv, **members)
        opened.append(made)
        return made

    yield open_session
    for made in opened:
        if made.process.poll() is None:
            made.process.terminate()
        made.end()


def test_a_shell_in_a_terminal_is_recorded_as_it_was_seen(runs: Runs, session: Opener) -> None:
    shell = session(*SHELL)
    assert shell.until(READY)["spoolId"]
    shell.send(DATA, b"echo $TERM; tty; exit 7\r")
    assert shell.until(EXIT) == {"code": 7, "signal": None, "reason": "exited"}
    record = runs.sealed(shell.run_id)
    assert record.stream(Stream.PTY_OUTPUT) == shell.output()
    assert b"xterm\r\n/dev/pts/" in shell.output()
    assert record.stream(Stream.PTY_INPUT) == b"echo $TERM; tty; exit 7\r"
    assert record.seal["exit"]["code"] == 7


def test_the_size_is_recorded_from_the_start_and_with_every_change(
    runs: Runs, session: Opener
) -> None:
    shell = session("sh", "-c", "stty size; read line; stty size")
    shell.until_shown(b"30 100")
    shell.send(RESIZE, b'{"columns": 50, "rows": 20}')
    shell.send(DATA, b"\r")
    shell.until(EXIT)
    assert shell.output().endswith(b"20 50\r\n")
    record = runs.sealed(shell.run_id)
    started, first = record.events[1:3]
    assert (started.kind, first.kind) == (Kind.PROCESS_STARTED, Kind.TERMINAL_RESIZED)
    assert record.metas(Kind.TERMINAL_RESIZED) == [
        {"columns": 100, "rows": 30},
        {"columns": 50, "rows": 20},
    ]


def test_what_is_typed_without_echo_is_counted_and_not_recorded(
    runs: Runs, session: Opener
) -> None:
    prompt = "stty -echo; printf ready; read password; stty echo; printf again; read name"
    shell = session("sh", "-c", prompt)
    shell.until_shown(b"ready")
    shell.send(DATA, b"hunter2\r")
    shell.until_shown(b"again")
    shell.send(DATA, b"Ada\r")
    shell.until(EXIT)
    record = runs.sealed(shell.run_id)
    (hidden,) = record.of(Kind.INPUT_HIDDEN)
    assert (hidden.offset, meta_of(hidden)) == (0, {"bytes": 8})
    (shown,) = [event for event in record.of(Kind.IO_CHUNK) if event.stream == Stream.PTY_INPUT]
    assert (shown.offset, shown.body) == (8, b"Ada\r")
    assert not [event for event in record.events if b"hunter2" in event.body + event.meta]
    assert record.seal["exit"]["code"] == 0


def test_keys_for_a_full_screen_program_are_recorded(runs: Runs, session: Opener) -> None:
    shell = session("sh", "-c", "stty raw -echo; printf ready; head -c 3")
    shell.until_shown(b"ready")
    shell.send(DATA, b"\x1b[A")
    shell.until(EXIT)
    assert runs.sealed(shell.run_id).stream(Stream.PTY_INPUT) == b"\x1b[A"


@pytest.mark.parametrize(("policy", "recorded"), [("full", b"hunter2\r"), ("off", b"")])
def test_the_policy_for_input_decides_over_everything(
    runs: Runs, session: Opener, policy: str, recorded: bytes
) -> None:
    script = "stty -echo; printf ready; read line"
    shell = session("sh", "-c", script, record={"input": policy})
    shell.until_shown(b"ready")
    shell.send(DATA, b"hunter2\r")
    shell.until(EXIT)
    record = runs.sealed(shell.run_id)
    assert record.stream(Stream.PTY_INPUT) == recorded
    assert record.closed(Stream.PTY_INPUT)[0] == 8


def test_without_a_terminal_the_streams_stay_apart_and_input_ends(
    runs: Runs, session: Opener
) -> None:
    copy = session("sh", "-c", "cat; echo err >&2", pty=False)
    content = bytes(range(256)) * 1000
    copy.send(DATA, content)
    copy.send(EOF)
    assert copy.until(EXIT)["code"] == 0
    assert copy.output(STDOUT) == content
    assert copy.output(STDERR) == b"err\n"
    record = runs.sealed(copy.run_id)
    assert record.stream(Stream.STDIN) == record.stream(Stream.STDOUT) == content
    assert record.stream(Stream.STDERR) == b"err\n"
    assert copy.end() == 0


def test_the_end_of_input_reaches_a_program_in_a_terminal(session: Opener) -> None:
    reader = session("cat")
    reader.until(READY)
    reader.send(EOF)
    assert reader.until(EXIT)["code"] == 0


@pytest.mark.parametrize("name", ["INT", "SIGINT"])
def test_a_signal_is_sent_by_its_name(runs: Runs, session: Opener, name: str) -> None:
    sleeper = session("sh", "-c", "echo here; exec sleep 600", pty=False)
    sleeper.until_shown(b"here")
    sleeper.send(SIGNAL, name.encode())
    assert sleeper.until(EXIT) == {"code": None, "signal": "SIGINT", "reason": "signaled"}
    (sent,) = runs.sealed(sleeper.run_id).metas(Kind.SIGNAL_SENT)
    assert sent == {"signal": "SIGINT", "target": "group", "reason": "client"}


@pytest.mark.parametrize("name", [b"NOPE", b"", b"9", b"\xff", b"SIG_BLOCK"])
def test_an_unknown_signal_is_answered_and_ends_nothing(session: Opener, name: bytes) -> None:
    reader = session("cat", pty=False)
    reader.until(READY)
    reader.send(SIGNAL, name)
    assert "signal" in reader.until(ERROR)["message"]
    reader.send(EOF)
    assert reader.until(EXIT)["code"] == 0


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff\xff\xff\xff\xff",
        struct.pack("!BI", DATA, 0xFFFFFFFF),
        struct.pack("!BI", 99, 0),
        struct.pack("!BI", SPEC, 2) + b"{}",
        struct.pack("!BI", RESIZE, 3) + b"{{{",
        struct.pack("!BI", RESIZE, 26) + b'{"columns": 0, "rows": -1}',
        struct.pack("!BI", RESIZE, 4000) + b"[" * 4000,
    ],
    ids=["0xff", "4 GiB", "unknown type", "second spec", "no JSON", "no size", "deep JSON"],
)
def test_a_client_that_breaks_the_protocol_is_told_and_hung_up_on(
    runs: Runs, session: Opener, frame: bytes
) -> None:
    sleeper = session("sleep", "600")
    sleeper.until(READY)
    sleeper.send_raw(frame)
    assert sleeper.until(ERROR)["message"]
    assert sleeper.until(EXIT)["signal"] == "SIGHUP"
    assert runs.sealed(sleeper.run_id).seal["reason"] == "stopped"
    assert sleeper.end() == 0


@pytest.mark.parametrize(
    "first",
    [
        b"",
        struct.pack("!BI", DATA, 0),
        struct.pack("!BI", SPEC, 2) + b"{}",
        struct.pack("!BI", SPEC, 5) + b"nope!",
        struct.pack("!BI", SPEC, 0xFFFFFFFF),
    ],
    ids=["nothing", "data first", "empty spec", "no JSON", "4 GiB"],
)
def test_a_session_without_a_usable_spec_is_refused(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(Session, "send", lambda self, *_: self.send_raw(first))
    refused = Session(runs, "true")
    assert refused.process.stdin is not None
    refused.process.stdin.close()
    assert refused.until(ERROR)["message"]
    assert refused.end() == 2
    assert not runs.root.exists()


def test_a_client_that_is_gone_costs_the_record_nothing(runs: Runs, session: Opener) -> None:
    script = "trap 'echo hangup; head -c 300000 /dev/zero; exit 3' HUP; echo here; "
    script += "while :; do sleep 0.01; done"
    left = session("sh", "-c", script, pty=False, graceSeconds=20)
    left.until_shown(b"here")
    left.leave()
    record = runs.sealed(left.run_id)
    assert record.stream(Stream.STDOUT) == b"here\nhangup\n" + bytes(300_000)
    assert record.exit == {"code": 3, "signal": None, "reason": "exited"}
    assert record.metas(Kind.SIGNAL_SENT)[0]["signal"] == "SIGHUP"


def test_a_program_that_ignores_the_hangup_is_killed(runs: Runs, session: Opener) -> None:
    left = session("sh", "-c", "trap '' HUP; echo here; sleep 600", graceSeconds=0.2)
    left.until_shown(b"here")
    left.leave()
    record = runs.sealed(left.run_id)
    assert record.exit == {"code": None, "signal": "SIGKILL", "reason": "signaled"}


def test_a_client_that_detaches_lets_the_program_go_on(runs: Runs, session: Opener) -> None:
    left = session("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo done; exit 4")
    left.until(READY)
    left.send(DETACH)
    left.leave()
    runs.workspace.go()
    record = runs.sealed(left.run_id)
    assert record.stream(Stream.PTY_OUTPUT) == b"done\r\n"
    assert record.exit["code"] == 4


def test_a_client_that_reads_nothing_slows_the_program_and_loses_nothing(
    runs: Runs, session: Opener
) -> None:
    slow = session("sh", "-c", "head -c 3000000 /dev/zero; touch written; echo end", pty=False)
    eventually(lambda: len(runs.record(slow.run_id).stream(Stream.STDOUT)) > 300_000)
    assert not (runs.workspace.directory / "written").exists()
    assert slow.until(EXIT)["code"] == 0
    assert slow.output() == bytes(3_000_000) + b"end\n"
    assert runs.sealed(slow.run_id).stream(Stream.STDOUT) == slow.output()


def test_a_client_that_reads_nothing_does_not_keep_a_run_from_being_stopped(
    runs: Runs, session: Opener
) -> None:
    slow = session("sh", "-c", "head -c 3000000 /dev/zero", pty=False)
    eventually(lambda: len(runs.record(slow.run_id).stream(Stream.STDOUT)) > 300_000)
    assert runs.stop(slow.run_id) == 0
    assert runs.sealed(slow.run_id).exit["reason"] == "cancelled"


def test_a_program_that_does_not_read_keeps_nobody_from_being_stopped(
    runs: Runs, session: Opener
) -> None:
    deaf = session("sleep", "600", pty=False)
    deaf.until(READY)
    deaf.send(DATA, bytes(1_000_000))
    deaf.leave()
    assert runs.sealed(deaf.run_id).exit["signal"] == "SIGHUP"


def test_signals_and_sizes_overtake_input_that_a_program_does_not_take(
    runs: Runs, session: Opener
) -> None:
    deaf = session("sh", "-c", "stty raw -echo; echo here; exec sleep 600")
    deaf.until_shown(b"here")
    for _ in range(40):
        deaf.send(DATA, bytes(65536))
    deaf.send(RESIZE, b'{"columns": 50, "rows": 20}')
    deaf.send(SIGNAL, b"TERM")
    assert deaf.until(EXIT)["signal"] == "SIGTERM"
    sizes = runs.sealed(deaf.run_id).metas(Kind.TERMINAL_RESIZED)
    assert sizes[-1] == {"columns": 50, "rows": 20}


def test_a_signal_reaches_a_program_that_waits_for_room_in_the_record(
    runs: Runs, session: Opener
) -> None:
    room = {"spoolBytes": 1 << 20, "segmentBytes": 1 << 18}
    loud = session("sh", "-c", "head -c 3000000 /dev/zero", pty=False, record=room)
    while len(loud.output()) < 700_000:
        assert loud.receive()
    eventually(lambda: len(runs.record(loud.run_id).stream(Stream.STDOUT)) > 850_000)
    loud.send(DATA, b"not taken")
    loud.send(SIGNAL, b"TERM")
    eventually(lambda: runs.record(loud.run_id).metas(Kind.SIGNAL_SENT))

    def over() -> bool:
        runs.take_whole_segments(loud.run_id)
        return runs.is_sealed(loud.run_id)

    eventually(over)
    assert loud.until(EXIT)["signal"] == "SIGTERM"


def test_a_session_that_cannot_start_its_program_says_so_and_ends(
    runs: Runs, session: Opener
) -> None:
    failed = session("no-such-program")
    assert failed.until(EXIT) == {"code": 127, "signal": None, "reason": "startFailed"}
    assert failed.end() == 0
    record = runs.sealed(failed.run_id)
    assert "no-such-program" in record.metas(Kind.PROCESS_STARTED)[0]["startFailed"]


def test_the_terminal_takes_every_byte_of_a_large_output(runs: Runs, session: Opener) -> None:
    content = os.urandom(1 << 20)
    (runs.workspace.directory / "content").write_bytes(content)
    shell = session("sh", "-c", "stty raw; cat content")
    assert shell.until(EXIT)["code"] == 0
    assert shell.output() == content
    assert runs.sealed(shell.run_id).stream(Stream.PTY_OUTPUT) == content


def test_background_work_of_a_session_outlives_it(runs: Runs, session: Opener) -> None:
    script = "setsid sh -c 'echo $$ > pid; exec sleep 600' >/dev/null 2>&1 </dev/null & "
    shell = session("sh", "-c", script + "while [ ! -s pid ]; do sleep 0.01; done")
    assert shell.until(EXIT)["code"] == 0
    runs.sealed(shell.run_id)
    assert is_alive(int(runs.workspace.read("pid")))


def test_a_second_session_of_the_same_run_is_refused(runs: Runs, session: Opener) -> None:
    first = session("cat", pty=False)
    first.until(READY)
    second = session("cat", pty=False, runId=first.run_id)
    assert second.until(ERROR)["message"] == "the run exists already"
    first.send(EOF)
    assert first.until(EXIT)["code"] == 0
