"""Interactive runs: a program in its terminal or pipes, and clients that are hostile or gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from runs.agent.record.frames import Kind, Stream
from runs.agent.session.channel import (
    HEADER,
    INITIAL_WINDOW,
    MAX_DATA,
    FromClient,
    ToClient,
    encode_frame,
)
from tests.runs.agent.booted import Workspace, eventually
from tests.runs.agent.connected import PTY, Channel, Session
from tests.runs.agent.recorded import Runs, is_alive, meta_of

Opener = Callable[..., Channel]
SHELL = ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture
def runs(workspace: Workspace) -> Runs:
    """A workspace in which runs can be started."""
    return Runs(workspace)


@pytest.fixture
def session(runs: Runs) -> Iterator[Opener]:
    """Opens sessions with one program each, and closes what a test left open."""
    opened: list[Session] = []

    def open_session(*argv: str, pty: bool = True, **members: Any) -> Channel:
        made = Session(runs, **members)
        opened.append(made)
        return made.open("command", argv=list(argv), pty=PTY if pty else None)

    yield open_session
    for made in opened:
        if made.process.poll() is None:
            made.process.terminate()
        made.end()


def test_a_shell_in_a_terminal_is_recorded_as_it_was_seen(runs: Runs, session: Opener) -> None:
    shell = session(*SHELL)
    assert shell.until(ToClient.OPENED)["process"] == 1
    shell.write(b"echo $TERM; tty; exit 7\r")
    assert shell.until(ToClient.EXIT) == {"code": 7, "signal": None, "reason": "exited"}
    record = shell.record()
    assert record.stream(Stream.PTY_OUTPUT) == shell.output()
    assert b"xterm\r\n/dev/pts/" in shell.output()
    assert record.stream(Stream.PTY_INPUT) == b"echo $TERM; tty; exit 7\r"
    assert record.seal["exit"]["code"] == 7


def test_the_size_is_recorded_from_the_start_and_with_every_change(
    runs: Runs, session: Opener
) -> None:
    shell = session("sh", "-c", "stty size; read line; stty size")
    shell.until_shown(b"30 100")
    shell.send(FromClient.RESIZE, b'{"columns": 50, "rows": 20}')
    shell.write(b"\r")
    shell.until(ToClient.EXIT)
    assert shell.output().endswith(b"20 50\r\n")
    record = shell.record()
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
    shell.write(b"hunter2\r")
    shell.until_shown(b"again")
    shell.write(b"Ada\r")
    shell.until(ToClient.EXIT)
    record = shell.record()
    (hidden,) = record.of(Kind.INPUT_HIDDEN)
    assert (hidden.offset, meta_of(hidden)) == (0, {"bytes": 8})
    (shown,) = [event for event in record.of(Kind.IO_CHUNK) if event.stream == Stream.PTY_INPUT]
    assert (shown.offset, shown.body) == (8, b"Ada\r")
    assert not [event for event in record.events if b"hunter2" in event.body + event.meta]
    assert record.seal["exit"]["code"] == 0


def test_keys_for_a_full_screen_program_are_recorded(runs: Runs, session: Opener) -> None:
    shell = session("sh", "-c", "stty raw -echo; printf ready; head -c 3")
    shell.until_shown(b"ready")
    shell.write(b"\x1b[A")
    shell.until(ToClient.EXIT)
    assert shell.record().stream(Stream.PTY_INPUT) == b"\x1b[A"


@pytest.mark.parametrize(("policy", "recorded"), [("full", b"hunter2\r"), ("off", b"")])
def test_the_policy_for_input_decides_over_everything(
    runs: Runs, session: Opener, policy: str, recorded: bytes
) -> None:
    script = "stty -echo; printf ready; read line"
    shell = session("sh", "-c", script, record={"input": policy})
    shell.until_shown(b"ready")
    shell.write(b"hunter2\r")
    shell.until(ToClient.EXIT)
    record = shell.record()
    assert record.stream(Stream.PTY_INPUT) == recorded
    assert record.closed(Stream.PTY_INPUT)[0] == 8


def test_without_a_terminal_the_streams_stay_apart_and_input_ends(
    runs: Runs, session: Opener
) -> None:
    copy = session("sh", "-c", "cat; echo err >&2", pty=False)
    content = bytes(range(256)) * 1000
    copy.write(content)
    copy.send(FromClient.EOF)
    assert copy.until(ToClient.EXIT)["code"] == 0
    assert copy.output(ToClient.STDOUT) == content
    assert copy.output(ToClient.STDERR) == b"err\n"
    record = copy.record()
    assert record.stream(Stream.STDIN) == record.stream(Stream.STDOUT) == content
    assert record.stream(Stream.STDERR) == b"err\n"
    assert copy.session.end() == 0


def test_the_end_of_input_reaches_a_program_in_a_terminal(session: Opener) -> None:
    reader = session("cat")
    reader.until(ToClient.OPENED)
    reader.send(FromClient.EOF)
    assert reader.until(ToClient.EXIT)["code"] == 0


@pytest.mark.parametrize("name", ["INT", "SIGINT"])
def test_a_signal_is_sent_by_its_name(runs: Runs, session: Opener, name: str) -> None:
    sleeper = session("sh", "-c", "echo here; exec sleep 600", pty=False)
    sleeper.until_shown(b"here")
    sleeper.send(FromClient.SIGNAL, name.encode())
    assert sleeper.until(ToClient.EXIT) == {"code": None, "signal": "SIGINT", "reason": "signaled"}
    (sent,) = sleeper.record().metas(Kind.SIGNAL_SENT)
    assert sent == {"signal": "SIGINT", "target": "group", "reason": "client"}


@pytest.mark.parametrize("name", [b"NOPE", b"", b"9", b"\xff", b"SIG_BLOCK"])
def test_an_unknown_signal_is_answered_and_ends_nothing(session: Opener, name: bytes) -> None:
    reader = session("cat", pty=False)
    reader.until(ToClient.OPENED)
    reader.send(FromClient.SIGNAL, name)
    assert "signal" in reader.until(ToClient.ERROR)["message"]
    reader.send(FromClient.EOF)
    assert reader.until(ToClient.EXIT)["code"] == 0


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 9,
        HEADER.pack(FromClient.DATA, 1, 0xFFFFFFFF),
        HEADER.pack(99, 0, 0),
        encode_frame(FromClient.SPEC, 0, b"{}"),
        encode_frame(ToClient.STDOUT, 1, b"not the client's to send"),
        encode_frame(FromClient.DATA, 0, b"for nobody"),
        encode_frame(FromClient.DATA, 7, b"for nobody yet"),
        encode_frame(FromClient.OPEN, 0, b"{}"),
        encode_frame(FromClient.OPEN, 1, b"{}"),
        encode_frame(FromClient.DATA, 1, bytes(MAX_DATA + 1)),
        encode_frame(FromClient.WINDOW, 1, b"1"),
        encode_frame(FromClient.WINDOW, 1, b"\xff\xff\xff\xff"),
        encode_frame(FromClient.RESIZE, 1, b"{{{"),
        encode_frame(FromClient.RESIZE, 1, b'{"columns": 0, "rows": -1}'),
        encode_frame(FromClient.RESIZE, 1, b"[" * 4000),
    ],
    ids=[
        "0xff",
        "4 GiB",
        "unknown type",
        "second spec",
        "an answer",
        "data for the connection",
        "data for an unopened channel",
        "channel 0",
        "a channel twice",
        "a frame too large",
        "a short window",
        "a window too wide",
        "no JSON",
        "no size",
        "deep JSON",
    ],
)
def test_a_client_that_breaks_the_protocol_is_told_and_hung_up_on(
    session: Opener, frame: bytes
) -> None:
    sleeper = session("sleep", "600")
    sleeper.until(ToClient.OPENED)
    sleeper.session.send_raw(frame)
    assert sleeper.session.until(ToClient.ERROR)["message"]
    assert sleeper.until(ToClient.EXIT)["signal"] == "SIGHUP"
    assert sleeper.record().seal["reason"] == "stopped"
    assert sleeper.session.end() == 0


@pytest.mark.parametrize(
    "first",
    [
        b"",
        encode_frame(FromClient.DATA, 0),
        encode_frame(FromClient.SPEC, 0, b"{}"),
        encode_frame(FromClient.SPEC, 1, b"{}"),
        encode_frame(FromClient.SPEC, 0, b"nope!"),
        HEADER.pack(FromClient.SPEC, 0, 0xFFFFFFFF),
    ],
    ids=["nothing", "data first", "empty spec", "a channel's", "no JSON", "4 GiB"],
)
def test_a_session_without_a_usable_spec_is_refused(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(Session, "send", lambda self, *_: self.send_raw(first))
    refused = Session(runs)
    assert refused.process.stdin is not None
    refused.process.stdin.close()
    assert refused.until(ToClient.ERROR)["message"]
    assert refused.end() == 2
    assert not runs.root.exists()


def test_a_client_that_is_gone_costs_the_record_nothing(session: Opener) -> None:
    script = "trap 'echo hangup; head -c 300000 /dev/zero; exit 3' HUP; echo here; "
    script += "while :; do sleep 0.01; done"
    left = session("sh", "-c", script, pty=False, graceSeconds=20)
    left.until_shown(b"here")
    record = left.record()
    assert record.stream(Stream.STDOUT) == b"here\nhangup\n" + bytes(300_000)
    assert record.exit == {"code": 3, "signal": None, "reason": "exited"}
    assert record.metas(Kind.SIGNAL_SENT)[0]["signal"] == "SIGHUP"
    assert record.seal["reason"] == "stopped"


def test_a_program_that_ignores_the_hangup_is_killed_with_its_whole_session(
    runs: Runs, session: Opener
) -> None:
    daemon = "setsid sh -c 'echo $$ > daemon; exec sleep 600' & "
    script = f"trap '' HUP; set -m; sleep 600 & echo $! > job; {daemon}"
    script += "while [ ! -s daemon ]; do sleep 0.01; done; echo here; sleep 600"
    left = session("sh", "-c", script, graceSeconds=0.2)
    left.until_shown(b"here")
    record = left.record()
    assert record.exit == {"code": None, "signal": "SIGKILL", "reason": "signaled"}
    assert [meta["target"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["session", "session"]
    eventually(lambda: not is_alive(int(runs.workspace.read("job"))))
    assert is_alive(int(runs.workspace.read("daemon")))


def test_what_outlives_a_program_that_was_hung_up_on_is_hung_up_on_too(
    runs: Runs, session: Opener
) -> None:
    # With job control each job has a group of its own, and this shell tells them nothing.
    script = "set -m; sleep 600 & echo $! > job; echo here; read line"
    left = session("sh", "-c", script, graceSeconds=60)
    left.until_shown(b"here")
    record = left.record()
    assert record.exit["signal"] == "SIGHUP"
    assert [meta["signal"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["SIGHUP"]
    eventually(lambda: not is_alive(int(runs.workspace.read("job"))))


def test_what_does_not_go_when_hung_up_on_is_killed_after_the_grace(
    runs: Runs, session: Opener
) -> None:
    deaf = "bash -c 'trap : HUP; echo $$ > deaf; while :; do sleep 0.01; done' & "
    script = f"set -m; {deaf} while [ ! -s deaf ]; do sleep 0.01; done; echo here; read line"
    left = session("sh", "-c", script, graceSeconds=0.5)
    left.until_shown(b"here")
    record = left.record()
    assert [meta["signal"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["SIGHUP", "SIGKILL"]
    assert not is_alive(int(runs.workspace.read("deaf")))


def test_what_was_told_to_survive_a_hangup_survives_it(runs: Runs, session: Opener) -> None:
    script = "nohup sh -c 'echo $$ > kept; exec sleep 600' >/dev/null 2>&1 & "
    script += "while [ ! -s kept ]; do sleep 0.01; done; echo here; read line"
    left = session("sh", "-c", script, graceSeconds=60)
    left.until_shown(b"here")
    record = left.record()
    assert [meta["signal"] for meta in record.metas(Kind.SIGNAL_SENT)] == ["SIGHUP"]
    assert is_alive(int(runs.workspace.read("kept")))


def test_a_client_that_detaches_lets_the_program_go_on(runs: Runs, session: Opener) -> None:
    left = session("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; echo done; exit 4")
    left.until(ToClient.OPENED)
    left.session.send(FromClient.DETACH)
    left.leave()
    runs.workspace.go()
    record = left.record()
    assert record.stream(Stream.PTY_OUTPUT) == b"done\r\n"
    assert record.exit["code"] == 4
    assert record.seal["reason"] == "ended"


def test_a_client_that_reads_nothing_does_not_keep_a_run_from_being_stopped(
    runs: Runs, session: Opener
) -> None:
    slow = session("sh", "-c", "head -c 3000000 /dev/zero", pty=False)
    eventually(lambda: len(runs.record(slow.run_id).stream(Stream.STDOUT)) > 300_000)
    assert runs.stop(slow.run_id) == 0
    assert slow.record().exit["reason"] == "cancelled"


def test_a_stop_ends_the_session_although_its_client_is_there(runs: Runs, session: Opener) -> None:
    sleeper = session("sleep", "600")
    sleeper.until(ToClient.OPENED)
    assert runs.stop(sleeper.run_id) == 0
    assert sleeper.until(ToClient.EXIT)["reason"] == "cancelled"
    assert sleeper.session.receive() is None
    assert runs.sealed(sleeper.run_id).seal["reason"] == "stopped"


def test_a_program_that_does_not_read_keeps_nobody_from_being_stopped(session: Opener) -> None:
    deaf = session("sleep", "600", pty=False)
    deaf.until(ToClient.OPENED)
    deaf.write(bytes(1_000_000))
    assert deaf.record().exit["signal"] == "SIGHUP"


def test_signals_and_sizes_overtake_input_that_a_program_does_not_take(session: Opener) -> None:
    deaf = session("sh", "-c", "stty raw -echo; echo here; exec sleep 600")
    deaf.until_shown(b"here")
    deaf.write(bytes(INITIAL_WINDOW))
    deaf.send(FromClient.RESIZE, b'{"columns": 50, "rows": 20}')
    deaf.send(FromClient.SIGNAL, b"TERM")
    assert deaf.until(ToClient.EXIT)["signal"] == "SIGTERM"
    sizes = deaf.record().metas(Kind.TERMINAL_RESIZED)
    assert sizes[-1] == {"columns": 50, "rows": 20}


def test_a_signal_reaches_a_program_that_waits_for_room_in_the_record(
    runs: Runs, session: Opener
) -> None:
    room = {"spoolBytes": 1 << 20, "segmentBytes": 1 << 18}
    loud = session("sh", "-c", "head -c 3000000 /dev/zero", pty=False, record=room)
    while len(loud.output()) < 700_000:
        assert loud.session.receive()
    eventually(lambda: len(runs.record(loud.run_id).stream(Stream.STDOUT)) > 850_000)
    loud.write(b"not taken")
    loud.send(FromClient.SIGNAL, b"TERM")
    eventually(lambda: runs.record(loud.run_id).metas(Kind.SIGNAL_SENT))
    loud.leave()

    def over() -> bool:
        runs.take_whole_segments(loud.run_id)
        return runs.is_sealed(loud.run_id)

    eventually(over)
    # The segments before the last may have been taken.
    assert meta_of(runs.record(loud.run_id).events[-1])["exit"]["signal"] == "SIGTERM"


def test_a_program_that_cannot_be_started_is_refused_and_recorded(session: Opener) -> None:
    failed = session("no-such-program")
    refused = failed.until(ToClient.REFUSED)
    assert (refused["code"], "no-such-program" in refused["message"]) == ("start-failed", True)
    record = failed.record()
    assert "no-such-program" in record.metas(Kind.PROCESS_STARTED)[0]["startFailed"]
    assert record.exit == {"code": 127, "signal": None, "reason": "startFailed"}
    assert record.seal["exit"] == record.exit


def test_the_terminal_takes_every_byte_of_a_large_output(runs: Runs, session: Opener) -> None:
    content = os.urandom(1 << 20)
    (runs.workspace.directory / "content").write_bytes(content)
    shell = session("sh", "-c", "stty raw; cat content")
    assert shell.until(ToClient.EXIT)["code"] == 0
    assert shell.output() == content
    assert shell.record().stream(Stream.PTY_OUTPUT) == content


def test_background_work_of_a_session_outlives_it(runs: Runs, session: Opener) -> None:
    script = "setsid sh -c 'echo $$ > pid; exec sleep 600' >/dev/null 2>&1 </dev/null & "
    shell = session("sh", "-c", script + "while [ ! -s pid ]; do sleep 0.01; done")
    assert shell.until(ToClient.EXIT)["code"] == 0
    assert shell.record().seal["reason"] == "ended"
    assert is_alive(int(runs.workspace.read("pid")))


def test_a_second_session_of_the_same_run_is_refused(runs: Runs, session: Opener) -> None:
    first = session("cat", pty=False)
    first.until(ToClient.OPENED)
    second = Session(runs, runId=first.run_id)
    assert second.until(ToClient.ERROR)["message"] == "the run exists already"
    assert second.end() == 3
    first.send(FromClient.EOF)
    assert first.until(ToClient.EXIT)["code"] == 0
