"""Terminals over SSH: what a person sees is what the record holds, byte for byte."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.stack.runs import RAW, REPOSITORY
from tests.stack.service import GitServer, Stack
from tests.stack.ssh import Client, Terminal
from tests.stack.ssh_access import SshAccess, access_of, found_in_database, gone
from tests.stack.worker_process import eventually

pytestmark = pytest.mark.docker

PLAIN = "TERM=dumb PS1='ready> ' exec bash --norc --noprofile"
PROMPT = b"ready> "
WAITING = "sh -c \"echo 'be'gun; exec sleep 600\""
"""One program, so that keys are for it as soon as it has said so."""


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("terminals")) as made:
        yield made


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    """A client that may enter it."""
    return access.client()


def ask(terminal: Terminal, line: str) -> str:
    """Type a line at the prompt, and return what is shown before the next one."""
    terminal.type(f"{line}\n")
    return terminal.until(PROMPT).decode()


def replayed(access: SshAccess, run: str) -> tuple[Any, str, list[str]]:
    """Return head, output and resizes of the run's terminal recording."""
    cast = access.place.stack.api.get(f"/v1/runs/{run}/export?format=asciicast").content
    head, *events = [json.loads(line) for line in cast.splitlines()]
    output = "".join(data for _, kind, data in events if kind == "o")
    return head, output, [data for _, kind, data in events if kind == "r"]


def assert_kept(access: SshAccess, run: str, terminal: Terminal) -> None:
    """The record has what the terminal showed: no byte more, none less, none else."""
    access.place.ended(run)
    assert access.place.output(run, "pty") == terminal.said
    assert access.place.loss(run)["complete"]
    access.place.verify(run)


# ---------------------------------------------------------------- the shell


def test_a_login_is_a_login_shell_in_a_terminal_and_is_recorded_as_it_was_shown(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run, client.terminal(columns=97, rows=31) as terminal:
        terminal.until(b"$ ")
        terminal.type("shopt -q login_shell && echo 'lo''gin'; pwd; echo \"$TERM\"; stty size\n")
        shown = terminal.until(b"31 97\r\n").decode()
        for line in ("login", REPOSITORY, "xterm-256color"):
            assert f"{line}\r\n" in shown
        terminal.type("tty; exit 5\n")
        assert terminal.ended() == 5
        assert b"/dev/pts/" in terminal.said
    shown = access.place.ended(run.id)
    assert (shown["status"], shown["exitCode"]) == ("completed", 5)
    assert_kept(access, run.id, terminal)


def test_a_command_may_have_a_terminal(access: SshAccess, client: Client) -> None:
    with access.run() as run, client.terminal("tty; stty size; exit 7", columns=40) as terminal:
        assert terminal.ended() == 7
    assert b"\r\n24 40\r\n" in terminal.said
    assert access.place.ended(run.id)["exitCode"] == 7
    assert_kept(access, run.id, terminal)


def test_every_new_size_of_the_window_is_seen_and_recorded(
    access: SshAccess, client: Client
) -> None:
    sizes = [(120, 40), (20, 5), (300, 100)]
    enough = f"/tmp/enough-{uuid.uuid4()}"
    # Not bash: it forgets a signal that comes before it is through with the last one's trap.
    script = f"trap 'stty size' WINCH; echo begun; until [ -e {enough} ]; do sleep 0.05; done"
    waiting = f'exec dash -c "{script}"'
    with access.run() as run, client.terminal(waiting, columns=97, rows=31) as terminal:
        terminal.until(b"begun\r\n")
        for columns, rows in sizes:
            terminal.resize(columns, rows)
            terminal.until(f"{rows} {columns}\r\n".encode())
        access.place.inside(f"touch {enough}")
        assert terminal.ended() == 0
    assert_kept(access, run.id, terminal)
    events = [event["ref"] for event in access.place.timeline(run.id, "terminalResized")]
    assert [(size["columns"], size["rows"]) for size in events] == [(97, 31), *sizes]
    head, output, resized = replayed(access, run.id)
    assert head["term"] == {"cols": 97, "rows": 31}
    assert output == terminal.said.decode()
    assert resized == [f"{columns}x{rows}" for columns, rows in sizes]


def test_full_screen_output_is_replayed_as_it_was(access: SshAccess, client: Client) -> None:
    script = (
        r"printf '\033[?1049h\033[2J\033[1;1Hüber ✓ 漢字 🎉\033[31mred\033[0m'; stty raw;"
        r" printf 'one\ntwo\n'; stty sane; seq 1 5000; printf '\033[?1049l\007'"
    )
    with access.run() as run, client.terminal(script) as terminal:
        assert terminal.ended() == 0
    assert b"one\ntwo\n" in terminal.said
    assert b"\r\n5000\r\n" in terminal.said
    assert_kept(access, run.id, terminal)
    _, output, _ = replayed(access, run.id)
    assert output == terminal.said.decode()


def test_bytes_that_are_no_text_are_kept_too(access: SshAccess, client: Client) -> None:
    with access.run() as run, client.terminal(r"stty raw; printf '\377\376\0\200'") as terminal:
        terminal.ended()
    assert b"\xff\xfe\0\x80" in terminal.said
    assert_kept(access, run.id, terminal)


# ---------------------------------------------------------------- keys


def test_keys_do_what_they_do_in_any_terminal(access: SshAccess, client: Client) -> None:
    with access.run() as run, client.terminal(PLAIN) as terminal:
        terminal.until(PROMPT)
        terminal.type(f"{WAITING}\n")
        terminal.until(b"begun\r\n")
        terminal.type(b"\x03")
        terminal.until(PROMPT)
        assert "\r\n130\r\n" in ask(terminal, "echo $?")
        terminal.type(f"{WAITING}\n")
        terminal.until(b"begun\r\n")
        terminal.type(b"\x1a")
        assert b"Stopped" in terminal.until(PROMPT)
        ask(terminal, "kill %1; wait")
        terminal.type("sh -c \"echo 'be'gun; exec cat\"\n")
        terminal.until(b"begun\r\n")
        terminal.type("line\n")
        terminal.until(b"line\r\nline\r\n")
        terminal.type(b"\x04")
        terminal.until(PROMPT)
        terminal.type(b"\x04")
        assert terminal.ended() == 0
    assert_kept(access, run.id, terminal)
    assert WAITING.encode() in access.place.output(run.id, "ptyInput")


def test_terminals_of_one_connection_are_kept_apart(access: SshAccess, client: Client) -> None:
    with (
        access.run() as run,
        client.connection() as shared,
        client.terminal("echo one; cat", *shared, columns=50) as one,
        client.terminal("echo two; cat", *shared, columns=60) as two,
    ):
        one.until(b"one\r\n")
        two.until(b"two\r\n")
        for terminal, name in ((one, b"uno"), (two, b"due"), (one, b"again"), (two, b"too")):
            terminal.type(name + b"\n")
            terminal.until(name + b"\r\n" + name + b"\r\n")
        for terminal in (two, one):
            terminal.type(b"\x04")
            assert terminal.ended() == 0
    access.place.completed(run.id)
    leaders = [
        event
        for event in access.place.timeline(run.id, "processStarted")
        if "channel" in event["ref"]
    ]
    kept = set()
    for leader in leaders:
        path = f"/v1/runs/{run.id}/scrollback?stream=pty&processId={leader['processId']}"
        kept.add(access.place.stack.api.get(path, headers=RAW).content)
    assert kept == {one.said, two.said}


def test_a_terminal_that_is_turned_off_hangs_its_shell_up(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run:
        with client.terminal(PLAIN) as terminal:
            terminal.until(PROMPT)
            pid = ask(terminal, "echo pid $$").split("pid ")[-1].strip()
            assert pid.isdecimal()
        gone(access.place, pid)
    shown = access.place.ended(run.id)
    assert shown["exitSignal"] == "SIGHUP" or shown["exitCode"] == 129, shown
    assert access.place.output(run.id, "pty").startswith(terminal.said)
    assert access.place.loss(run.id)["complete"]


def test_an_escape_key_of_the_client_ends_the_connection(access: SshAccess, client: Client) -> None:
    with access.run() as run, client.terminal(PLAIN) as terminal:
        terminal.until(PROMPT)
        terminal.type("\n")
        terminal.until(PROMPT)
        terminal.type("~.")
        assert terminal.ended() == 255
    assert access.place.ended(run.id)["status"] == "completed"
    assert access.place.loss(run.id)["complete"]


# ---------------------------------------------------------------- what is not recorded


PASSWORD = "Xy7-pass-word-{}"


def wait_hidden(access: SshAccess, tty: str) -> None:
    """Wait until the terminal does not echo: some programs ask before they see to that."""
    eventually(
        lambda: " -echo " in access.place.inside(f"stty -F {tty} -a", user="root"),
        what="the terminal does not echo",
    )


@pytest.mark.parametrize(
    ("name", "asking", "question"),
    [
        ("read", "read -rsp 'Secret: ' it; echo \"got ${#it}\"", b"Secret: "),
        (
            "getpass",
            "python3 -c 'import getpass; print(\"got\", len(getpass.getpass()))'",
            b"Password: ",
        ),
    ],
)
def test_a_password_typed_at_a_prompt_is_nowhere_in_the_database(
    access: SshAccess, client: Client, name: str, asking: str, question: bytes
) -> None:
    password = PASSWORD.format(name)
    with access.run() as run, client.terminal(PLAIN) as terminal:
        terminal.until(PROMPT)
        ask(terminal, f"echo seen-{name}")
        tty = ask(terminal, "tty").split("\r\n")[1]
        terminal.type(f"{asking}\n")
        terminal.until(question)
        if name == "read":  # the question is part of the command, which was echoed
            terminal.until(question)
        wait_hidden(access, tty)
        terminal.type(f"{password}\n")
        terminal.until(f"got {len(password)}\r\n".encode())
        terminal.type("exit\n")
        terminal.ended()
    assert_kept(access, run.id, terminal)
    assert password.encode() not in access.place.output(run.id, "ptyInput")
    assert "run_event.body" in found_in_database(f"seen-{name}".encode())
    assert found_in_database(password.encode()) == []
    (hidden,) = access.place.timeline(run.id, "inputHidden")
    assert hidden["ref"]["bytes"] == len(password) + 1


def test_a_password_for_another_account_is_nowhere_in_the_database(
    access: SshAccess, client: Client
) -> None:
    password = PASSWORD.format("su")
    with access.run() as run, client.terminal("tty; exec su root -c true") as terminal:
        tty = terminal.until(b"\r\n").decode()
        terminal.until(b"assword: ")
        wait_hidden(access, tty)
        terminal.type(f"{password}\n")
        assert terminal.ended() == 1
    assert b"ailure" in terminal.said
    assert_kept(access, run.id, terminal)
    assert found_in_database(password.encode()) == []
