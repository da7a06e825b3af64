"""Commands through the gateway, with OpenSSH's client and an agent that behaves."""

from __future__ import annotations

import hashlib
import json
import os
import signal

import pytest

from runs.agent.session.channel import Frame, FromClient, ToClient
from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.scripted_engine import Peer
from tests.stack.ssh import HOST
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT


def test_a_command_has_its_input_outputs_and_exit_code(hall: Hall) -> None:
    done = hall.client().command("cat; echo problem >&2; exit 7", given=b"given\n")
    assert (done.code, done.out, done.err) == (7, b"given\n", "problem\n")


def test_many_bytes_go_both_ways_unchanged(hall: Hall) -> None:
    content = os.urandom(20_000_000)
    echoed = hall.client().command("cat", given=content)
    assert hashlib.sha256(echoed.out).digest() == hashlib.sha256(content).digest()


def test_the_session_knows_the_run_and_where_the_client_comes_from(hall: Hall) -> None:
    hall.client().said("true")
    spec = json.loads(hall.engine.peers[0].frames[0].payload)
    assert spec["version"] == 2
    assert spec["mode"] == "interactive"
    assert spec["record"]["policy"] == "block"
    origin = spec["origin"]
    assert origin["address"] == "127.0.0.1"
    assert origin["user"] == hall.user
    assert origin["client"].startswith("SSH-2.0-OpenSSH")
    assert origin["key"].startswith("SHA256:")
    run = hall.api.get(f"/v1/runs/{spec['runId']}").body
    assert (run["mode"], run["harnessId"], run["status"]) == ("interactive", "ssh", "running")


def test_only_variables_that_are_allowed_get_in(hall: Hall) -> None:
    allowed = "LC_ALL=C.UTF-8 LANG=de_DE NO_COLOR=1 GIT_AUTHOR_NAME=Ada"
    hall.client().said("true", "-o", f"SetEnv={allowed} PATH=/evil LD_PRELOAD=/evil.so")
    (opened,) = _frames(hall, FromClient.OPEN)
    assert json.loads(opened.payload)["env"] == {
        "LC_ALL": "C.UTF-8",
        "LANG": "de_DE",
        "GIT_AUTHOR_NAME": "Ada",
        "NO_COLOR": "1",
    }


def test_a_program_that_a_signal_ended_says_so(hall: Hall) -> None:
    done = hall.client().command("kill -TERM $$", "-v")
    assert done.code == 255
    assert "exit-signal" in done.err


def test_what_cannot_be_started_says_why_and_ends_with_127(hall: Hall) -> None:
    def refuse(peer: Peer, frame: Frame) -> bool:
        if frame.type == FromClient.OPEN:
            refusal = {"code": "start-failed", "message": "there is no shell \x1b[31m"}
            peer.send(ToClient.REFUSED, frame.channel, refusal)
        return frame.type == FromClient.OPEN

    hall.engine.behaviour = refuse
    done = hall.client().command("true")
    assert done.code == 127
    assert done.err.strip() == r"there is no shell \x1b[31m"


def test_a_missing_subsystem_is_refused_with_the_reason(hall: Hall) -> None:
    done = hall.client().ssh("-s", HOST, "sftp")
    assert (done.code, done.err.strip()) == (127, "no sftp")


def test_a_program_whose_reader_has_gone_is_told_as_in_any_pipe(hall: Hall) -> None:
    client = hall.client()
    with client.start("sh", "-c", f"ssh -F {client.config} {HOST} yes | head -2") as process:
        out, _ = process.communicate(timeout=LONG_WAIT)
    assert out == b"y\ny\n"


def test_a_client_that_goes_away_hangs_up(hall: Hall) -> None:
    with hall.client().begun("echo here; exec sleep 600") as begun:
        (peer,) = hall.engine.peers
        begun.process.send_signal(signal.SIGKILL)
        eventually(lambda: peer.closed, what="the agent is hung up on")


def test_a_closed_channel_of_a_shared_connection_is_hung_up_on(hall: Hall) -> None:
    client = hall.client()
    with client.connection() as shared:
        with client.begun("echo here; exec sleep 600", *shared) as begun:
            begun.process.send_signal(signal.SIGKILL)
            eventually(lambda: _frames(hall, FromClient.CLOSE), what="the channel is closed")
        assert client.said("echo more", *shared) == b"more\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_a_client_that_does_not_read_holds_the_program_up(hall: Hall, stream: int) -> None:
    """What is on the way stays bounded: the agent is granted nothing more."""
    with hall.client().begun(f"echo here; exec yes >&{stream}") as begun:
        (peer,) = hall.engine.peers
        begun.process.send_signal(signal.SIGSTOP)
        eventually(lambda: peer.windows[1] < 256 * 1024, what="the window is used up")
        begun.process.send_signal(signal.SIGKILL)
        eventually(lambda: peer.closed, what="the agent is hung up on")


def _frames(hall: Hall, kind: int) -> list[Frame]:
    return [frame for frame in hall.engine.peers[0].frames if frame.type == kind]
