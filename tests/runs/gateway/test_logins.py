"""Who gets in, who does not, and what they are told."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

from runs.agent.session.channel import Frame, FromClient, ToClient
from runs.models import Run
from tests.runs.gateway.conftest import Hall
from tests.runs.gateway.scripted_engine import Peer
from tests.stack.free_ports import free_port
from tests.stack.ssh import HOST
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

KEYS = [
    ("ed25519", ()),
    ("rsa", ("-b", "2048")),
    ("ecdsa", ("-b", "256")),
    ("ecdsa", ("-b", "384")),
    ("ecdsa", ("-b", "521")),
]


@pytest.mark.parametrize(("kind", "options"), KEYS)
def test_keys_of_every_algorithm_open(hall: Hall, kind: str, options: tuple[str, ...]) -> None:
    client = hall.client(owner=None)
    _new_key(client.folder / "key", kind, *options)
    hall.api.post(
        "/v1/ssh-keys", {"ownerUserId": "usr_test", "publicKey": client.public_key}, expect=201
    )
    assert client.said("echo in") == b"in\n"


def test_an_rsa_key_that_signs_with_sha1_does_not(hall: Hall) -> None:
    client = hall.client(owner=None)
    _new_key(client.folder / "key", "rsa", "-b", "2048")
    hall.api.post(
        "/v1/ssh-keys", {"ownerUserId": "usr_test", "publicKey": client.public_key}, expect=201
    )
    done = client.command("true", "-o", "PubkeyAcceptedAlgorithms=ssh-rsa")
    assert done.code == 255


def test_an_unknown_key_is_told_its_fingerprint_and_what_to_do(hall: Hall) -> None:
    client = hall.client(owner=None)
    done = client.command("true", "-o", "LogLevel=INFO")
    shown = subprocess.run(
        ["ssh-keygen", "-lf", client.folder / "key.pub"], capture_output=True, text=True, check=True
    )
    assert done.code == 255
    assert f"The key {shown.stdout.split()[1]} is not registered" in done.err
    assert "POST /v1/ssh-keys" in done.err
    assert "Permission denied (publickey)" in done.err
    assert hall.engine.requests == []


def test_the_welcome_is_shown_before_anything_else(hall: Hall) -> None:
    done = hall.client().command("true", "-o", "LogLevel=INFO")
    assert done.err.startswith("Welcome. This session is recorded.\r\n")


def test_no_more_keys_are_tried_than_allowed(hall: Hall) -> None:
    client = hall.client(owner=None)
    files = [client.folder / f"key{number}" for number in range(8)]
    for file in files:
        _new_key(file, "ed25519")
    named = [word for file in files for word in ("-o", f"IdentityFile={file}")]
    done = client.command("true", *named, "-o", "LogLevel=INFO")
    assert done.err.count("is not registered") == 6
    assert "at most 6 keys are tried" in done.err
    assert "IdentitiesOnly=yes" in done.err


@pytest.mark.parametrize("method", ["password", "keyboard-interactive", "hostbased", "none"])
def test_nothing_but_a_public_key_is_taken(hall: Hall, method: str) -> None:
    done = hall.client().command("true", "-o", f"PreferredAuthentications={method}")
    assert done.code == 255
    assert "Permission denied (publickey)" in done.err


@pytest.mark.parametrize("name", ["root", "ws", "ws-", "ws-1234", "WS-{id}", "ws-{id}x", "{id}"])
def test_a_user_name_that_is_none_is_told_what_one_looks_like(hall: Hall, name: str) -> None:
    client = hall.client(user=name.format(id=uuid.uuid4()))
    done = client.command("true")
    assert done.code == 255
    assert "has to be ws-<workspace id>" in done.err


def test_the_id_may_be_written_in_capitals(hall: Hall) -> None:
    client = hall.client(user=f"ws-{hall.workspace_id.upper()}")
    assert client.said("echo in") == b"in\n"


@pytest.mark.parametrize("name", ["ws-\x1b[31m", "ws-\u202e", "\x07" * 300, "ws-ü\x9b"])
def test_a_user_name_with_control_characters_is_escaped(hall: Hall, name: str) -> None:
    # Only in a configuration does OpenSSH's client let such a name pass.
    done = hall.client(user=name).command("true")
    assert done.code == 255
    assert "has to be ws-<workspace id>" in done.err
    assert done.err.strip().isprintable()


def test_an_unknown_workspace_is_told(hall: Hall) -> None:
    workspace_id = uuid.uuid4()
    done = hall.client(user=f"ws-{workspace_id}").command("true")
    assert done.code == 255
    assert f"you have no workspace {workspace_id}" in done.err
    assert hall.engine.requests == []


def test_a_foreign_workspace_is_as_absent_as_an_unknown_one(hall: Hall) -> None:
    done = hall.client(owner="usr_other").command("true")
    assert done.code == 255
    assert f"you have no workspace {hall.workspace_id}" in done.err
    assert hall.engine.requests == []


def test_an_api_that_is_down_is_told(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_API_BASE_URL=f"http://127.0.0.1:{free_port()}")
    done = hall.client(gateway=gateway).command("true")
    assert done.code == 255
    assert "the control plane cannot be reached" in done.err


def test_a_token_that_is_not_shared_is_told(hall: Hall) -> None:
    gateway = hall.another_gateway(WORKSPACE_SSH_GATEWAY_TOKEN="another")
    done = hall.client(gateway=gateway).command("true")
    assert done.code == 255
    assert "do not have the same token" in done.err


REFUSALS = [
    (409, {"message": "container is not running"}, "container is not running"),
    (409, {"message": "container is paused, unpause it"}, "container is paused"),
    (404, {"message": "no such container"}, "container is gone"),
    (500, {"message": "out of \x1b[31m order"}, r"out of"),
]


@pytest.mark.parametrize(("status", "body", "told"), REFUSALS)
def test_an_engine_that_refuses_is_told_and_no_run_stays_open(
    hall: Hall, status: int, body: dict[str, str], told: str
) -> None:
    hall.engine.answers["/exec"] = (status, body)
    done = hall.client().command("true")
    assert done.code == 255
    assert "the workspace cannot be entered" in done.err
    assert told in done.err
    eventually(_no_run_is_open, what="the run is cancelled")


def test_a_record_that_cannot_be_made_is_told_and_nothing_starts(hall: Hall) -> None:
    def refuse(peer: Peer, frame: Frame) -> bool:
        peer.send(ToClient.ERROR, 0, {"message": "the run cannot be recorded: no room"})
        peer.writer.close()
        return True

    hall.engine.behaviour = refuse
    done = hall.client().command("true")
    assert done.code == 255
    assert "the run cannot be recorded: no room" in done.err
    assert [frame.type for frame in hall.engine.peers[0].frames] == [FromClient.SPEC]
    eventually(_no_run_is_open, what="the run is cancelled")


def test_an_agent_of_another_release_is_told(hall: Hall) -> None:
    def nonsense(peer: Peer, frame: Frame) -> bool:
        peer.raw(b"\xff" * 100)
        return True

    hall.engine.behaviour = nonsense
    done = hall.client().command("true")
    assert "does not speak this gateway's protocol" in done.err
    eventually(_no_run_is_open, what="the run is cancelled")


def test_a_client_that_leaves_while_it_is_let_in_leaves_nothing_behind(hall: Hall) -> None:
    hall.engine.behaviour = lambda peer, frame: True  # it never says that it is ready
    client = hall.client()
    with client.start("ssh", "-F", str(client.config), HOST, "true") as process:
        eventually(lambda: hall.engine.peers and hall.engine.peers[0].frames, what="the spec")
        process.kill()
        (peer,) = hall.engine.peers
        eventually(lambda: peer.closed, what="the agent is hung up on")
    eventually(_no_run_is_open, what="the run is cancelled")


def test_silent_connections_keep_nobody_out(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_MAX_LOGINS="4")
    silent = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(20)]
    assert hall.client(gateway=gateway).said("echo in") == b"in\n"
    for connection in silent:
        connection.close()


def test_whoever_does_not_log_in_in_time_is_told(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_LOGIN_GRACE_MS="300")
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=LONG_WAIT) as silent:
        silent.sendall(b"SSH-2.0-slow\r\n")
        said = b""
        while data := silent.recv(4096):
            said += data
    assert b"nobody has logged in within 0.3 seconds" in said


def test_an_owner_has_so_many_connections(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_MAX_CONNECTIONS_PER_PRINCIPAL="1")
    client = hall.client(gateway=gateway)
    with client.begun("echo here; exec sleep 600"):
        done = client.command("true")
        assert done.code == 255
        assert "you have 1 connections already" in done.err
    eventually(lambda: client.command("true").code == 0, what="the place is free again")


def test_failing_keys_wait_and_good_ones_do_not(hall: Hall) -> None:
    gateway = hall.another_gateway(SSH_GATEWAY_FAILED_LOGINS="1")
    stranger = hall.client(owner=None, gateway=gateway)
    for _ in range(2):
        assert stranger.command("true").code == 255
    delays = [line for line in gateway.told.splitlines() if '"key_unknown"' in line]
    assert '"delay": 0' in delays[0]
    assert '"delay": 1' in delays[1]
    assert hall.client(gateway=gateway).said("echo in") == b"in\n"


def test_a_flood_before_the_login_is_cut_off(hall: Hall) -> None:
    with socket.create_connection(("127.0.0.1", hall.gateway.port), timeout=LONG_WAIT) as flood:
        flood.sendall(b"SSH-2.0-flood\r\n")
        with pytest.raises(OSError):
            flood.sendall(os.urandom(64_000_000))
    assert hall.client().said("echo in") == b"in\n"


def _no_run_is_open() -> bool:
    return not Run.objects.filter(mode="interactive", status="queued").exists()


def _new_key(path: Path, kind: str, *options: str) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.pub").unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, *options, "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)
