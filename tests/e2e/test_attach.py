"""Attaches to commands in a real workspace: what is typed, what is shown, and how they end."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runs.exec.waiting import stop_listening
from tests.runs.attach.attached_client import Attached
from tests.stack.api_process import ApiProcess, api_process
from tests.stack.runs import Place, place_of
from tests.stack.service import GitServer, Stack

pytestmark = pytest.mark.docker

PATTERN = bytes(range(256)) * 1024
SIZES = [0, 1, 4095, 4096, 4097, 65535, 65536, 65537]
TERMINAL = {"columns": 80, "rows": 24}


@pytest.fixture(scope="module")
def place(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One workspace for all tests here."""
    with place_of(stack, git_server, run_queue, tmp_path_factory.mktemp("attach")) as made:
        yield made
    stop_listening()


@pytest.fixture(scope="module")
def api(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    """A server as a deployment has it."""
    with api_process(tmp_path_factory.mktemp("api") / "api.log") as served:
        yield served


def opened(place: Place, command: Any, **members: Any) -> str:
    """Execute a command whose input stays open; return its run."""
    path = f"/v1/workspaces/{place.started.answer['workspaceId']}/exec"
    body = {"command": command, "openStdin": True, "background": True, **members}
    return str(place.stack.api.post(path, body, expect=202).body["runId"])


def test_a_shell_at_a_terminal_is_typed_to_resized_interrupted_and_left(
    place: Place, api: ApiProcess
) -> None:
    script = "export PS1='$ '; exec bash --norc --noprofile --noediting -i"
    run = opened(place, ["bash", "-c", script], terminal=TERMINAL)
    with Attached(api.port, run) as client:

        def shows(text: bytes) -> None:
            client.until(lambda client: text in client.output["pty"])

        shows(b"$ ")
        client.socket.send(b"stty size\n")
        shows(b"24 80\r\n")
        client.say("resize", columns=100, rows=30)
        client.socket.send(b"stty size\n")
        shows(b"30 100\r\n")
        client.socket.send(b"echo begun; sleep 600\n")
        shows(b"begun\r\n")
        client.socket.send(b"\x03")
        shows(b"^C")
        client.socket.send(b"exit 7\n")
        client.rest()
        assert client.closed == (1000, "")
    ended = client.named("end")
    assert (ended["status"], ended["exitCode"]) == ("failed", 7)
    assert bytes(client.output["pty"]) == place.output(run, "pty")
    place.verify(run)


def test_a_signal_reaches_a_command_without_a_terminal(place: Place, api: ApiProcess) -> None:
    script = "trap 'echo told; exit 3' INT; echo begun; while :; do sleep 0.1; done"
    run = opened(place, ["bash", "-c", script])
    with Attached(api.port, run) as client:
        client.until(lambda client: bytes(client.output["stdout"]) == b"begun\n")
        client.say("signal", signal="INT")
        client.rest()
    assert client.named("end")["exitCode"] == 3
    assert bytes(client.output["stdout"]) == b"begun\ntold\n"


def send_all(client: Attached, content: bytes) -> threading.Thread:
    """Send input in a thread of its own, and its end."""

    def send() -> None:
        for at in range(0, len(content), 65536):
            client.socket.send(content[at : at + 65536])
        client.say("input-end")

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def same_both_ways(place: Place, api: ApiProcess, content: bytes) -> None:
    """Have a command pass on its input to both outputs, and compare."""
    run = opened(place, ["tee", "/dev/stderr"])
    with Attached(api.port, run) as client:
        sending = send_all(client, content)
        client.rest()
        sending.join()
        assert client.closed == (1000, ""), client.messages
    expected = hashlib.sha256(content).hexdigest()
    found = {name: hashlib.sha256(client.output[name]).hexdigest() for name in ("stdout", "stderr")}
    assert found == {"stdout": expected, "stderr": expected}
    assert client.holes == []


def test_bytes_are_the_same_both_ways(place: Place, api: ApiProcess) -> None:
    for size in SIZES:
        same_both_ways(place, api, PATTERN[:size])


@pytest.mark.slow
def test_a_hundred_mebibytes_are_the_same_both_ways(place: Place, api: ApiProcess) -> None:
    content = b"".join(hashlib.sha256(bytes([each])).digest() * 32768 for each in range(100))
    assert len(content) == 100 * 1024**2
    run = opened(place, ["cat"])
    with Attached(api.port, run) as client:
        sending = send_all(client, content)
        client.rest()
        sending.join()
        assert client.closed == (1000, ""), client.messages
    assert hashlib.sha256(client.output["stdout"]).digest() == hashlib.sha256(content).digest()
