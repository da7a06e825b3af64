"""What a client may ask for: shells, commands, subsystems, and what their programs see."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.agent.record.frames import Kind, Stream
from runs.agent.session import session_requests as requests
from runs.agent.session.channel import FromClient, ToClient
from tests.runs.agent.booted import USER, Workspace
from tests.runs.agent.connected import ORIGIN, PTY, Session
from tests.runs.agent.recorded import Runs

Opener = Callable[..., Session]


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
        return made

    yield open_session
    for made in opened:
        made.end()


def environment(session: Session, **members: Any) -> dict[str, str]:
    """What a program of the session sees."""
    shown = session.open("exec", command="env", **members)
    assert shown.until(ToClient.EXIT)["code"] == 0
    lines = shown.output().decode().replace("\r\n", "\n").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_a_shell_is_a_login_shell_in_the_working_directory(runs: Runs, connect: Opener) -> None:
    home = Path(runs.workspace.home)
    (home / ".profile").write_text("echo from the profile\n")
    shell = connect().open("shell", pty=PTY)
    shell.until_shown(b"from the profile")
    shell.write(b"pwd; exit\r")
    assert shell.until(ToClient.EXIT)["code"] == 0
    assert str(runs.workspace.directory).encode() + b"\r\n" in shell.output()


def test_a_command_is_the_shell_s_to_understand(connect: Opener) -> None:
    session = connect()
    command = session.open(
        "exec", command='for i in 1 2; do echo "$i;"; done; echo err >&2; exit 7'
    )
    assert command.until(ToClient.EXIT)["code"] == 7
    assert (command.output(), command.output(ToClient.STDERR)) == (b"1;\n2;\n", b"err\n")
    (started,) = session.record().metas(Kind.PROCESS_STARTED)
    assert started["argv"][1] == "-c"


def test_programs_see_who_they_are_and_where_the_client_comes_from(connect: Opener) -> None:
    env = environment(connect(origin=ORIGIN, env={"OF_THE_RUN": "1"}), env={"LC_ALL": "C"})
    assert (env["USER"], env["LOGNAME"], env["OF_THE_RUN"], env["LC_ALL"]) == (USER, USER, "1", "C")
    assert env["SSH_CLIENT"] == "192.0.2.7 50022 22"
    assert env["SSH_CONNECTION"] == "192.0.2.7 50022 127.0.0.1 22"
    assert {"HOME", "SHELL", "PATH", "SVC_RUN_ID"} < set(env)
    assert "SSH_TTY" not in env
    assert "TERM" not in env


def test_a_terminal_has_a_name_that_its_user_may_open(connect: Opener) -> None:
    shown = connect().open("exec", command='tty; echo "$SSH_TTY"; echo yes > "$SSH_TTY"', pty=PTY)
    assert shown.until(ToClient.EXIT)["code"] == 0
    name, same, said = shown.output().split()
    assert (name, said) == (same, b"yes")


@pytest.mark.parametrize(
    "members",
    [
        {"kind": "nope"},
        {"kind": "exec"},
        {"kind": "exec", "command": "a\0b"},
        {"kind": "command", "argv": []},
        {"kind": "command", "argv": ["true"], "pty": {"columns": 0, "rows": 1, "term": "x"}},
        {"kind": "command", "argv": ["true"], "env": {"SVC_RUN_ID": "another"}},
        {"kind": "shell", "unknown": 1},
        {"kind": "subsystem"},
    ],
)
def test_what_cannot_be_understood_is_refused_and_ends_nothing(
    connect: Opener, members: dict[str, Any]
) -> None:
    session = connect()
    asked = session.open(**members)
    assert asked.until(ToClient.REFUSED)["code"] == "bad-request"
    assert session.command("true").until(ToClient.EXIT)["code"] == 0


def test_a_command_with_a_text_that_no_program_can_be_given_is_refused(connect: Opener) -> None:
    session = connect()
    too_long = session.open("exec", command="x" * 3_000_000)
    assert too_long.until(ToClient.REFUSED)["code"] == "start-failed"


def test_an_unknown_subsystem_is_refused(connect: Opener) -> None:
    refused = connect().open("subsystem", name="nope").until(ToClient.REFUSED)
    assert refused["code"] == "no-subsystem"


def test_sftp_is_served_by_the_image_s_own_server_and_recorded(connect: Opener) -> None:
    session = connect()
    sftp = session.open("subsystem", name="sftp")
    hello = struct.pack("!IBI", 5, 1, 3)
    sftp.write(hello)
    sftp.until_shown(b"\x02\0\0\0\x03")
    sftp.send(FromClient.EOF)
    assert sftp.until(ToClient.EXIT)["code"] == 0
    record = session.record()
    assert record.stream(Stream.STDIN) == hello
    assert record.metas(Kind.PROCESS_STARTED)[0]["kind"] == "subsystem"


def test_an_sftp_server_is_found_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_SFTP_SERVERS", ())
    path = f"/usr/bin:{tmp_path}"
    with pytest.raises(requests.Refusal) as refusal:
        requests._subsystem("sftp", path)
    assert refusal.value.code == "no-subsystem"
    server = tmp_path / "sftp-server"
    server.touch(mode=0o755)
    assert requests._subsystem("sftp", path) == str(server)
