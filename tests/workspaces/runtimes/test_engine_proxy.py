"""The proxy to the engine lets the agents of this installation through, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import docker
import pytest
from docker.models.containers import Container

from tests.support.removal import remove_container
from tests.support.waiting import LONG_WAIT
from tests.workspaces.conftest import BASE_IMAGE, DOCKER_HOST, tar_of
from tests.workspaces.runtimes.serving_engine_proxy import (
    ServingEngineProxy,
    request,
    serving_engine_proxy,
    wait_for,
)
from workspaces.runtimes.base import LaunchError
from workspaces.runtimes.docker import DockerAdapter
from workspaces.runtimes.docker.engine_proxy import EngineProxyLimits, server

pytestmark = pytest.mark.docker

AGENT = "/usr/lib/svc/agent"
CHECKOUT = Path(__file__).resolve().parents[3]
MIB = 1024 * 1024
QUICK = EngineProxyLimits(look=0.1)


@pytest.fixture(scope="module")
def client() -> Iterator[docker.DockerClient]:
    """The engine, asked directly."""
    made = docker.DockerClient(base_url=DOCKER_HOST, timeout=round(LONG_WAIT))
    yield made
    made.close()


@pytest.fixture(scope="module")
def image(client: docker.DockerClient) -> str:
    """An image whose "agent" does what it is given as arguments."""
    dockerfile = f'FROM {BASE_IMAGE}\nCOPY agent {AGENT}\nCMD ["sleep", "infinity"]\n'
    context = tar_of(Dockerfile=dockerfile.encode(), agent=b'#!/bin/bash\nexec "$@"\n')
    built, _ = client.images.build(fileobj=io.BytesIO(context), custom_context=True, forcerm=True)
    return str(built.id)


@pytest.fixture(scope="module")
def start(
    client: docker.DockerClient, image: str
) -> Iterator[Callable[[str], tuple[UUID, Container]]]:
    """Start a container of an installation, as a launch names and labels it."""
    started: list[Container] = []

    def begin(instance: str) -> tuple[UUID, Container]:
        run_id = uuid4()
        container = client.containers.run(
            image,
            name=f"svc-{run_id}",
            detach=True,
            labels={"svc.instance": instance, "svc.run": str(run_id)},
            network_mode="none",
        )
        started.append(container)
        return run_id, container

    yield begin
    for container in started:
        remove_container(container)


@pytest.fixture(scope="module")
def instance() -> str:
    """An installation of these tests' own."""
    return f"proxy-{uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def ours(start: Callable[[str], tuple[UUID, Container]], instance: str) -> tuple[UUID, Container]:
    """A workspace of this installation."""
    return start(instance)


@pytest.fixture(scope="module")
def others(start: Callable[[str], tuple[UUID, Container]]) -> tuple[UUID, Container]:
    """A workspace of another one."""
    return start(f"other-{uuid4().hex[:8]}")


@pytest.fixture
def opened(instance: str) -> Iterator[ServingEngineProxy]:
    """An open proxy of this installation."""
    with serving_engine_proxy(DOCKER_HOST, instance, QUICK) as proxy:
        yield proxy
        proxy.wait_empty()


@pytest.fixture
def adapter(opened: ServingEngineProxy, instance: str) -> Iterator[DockerAdapter]:
    """What the run worker has: the adapter, with the proxy in place of the engine."""
    with contextlib.closing(DockerAdapter(opened.docker_host, instance)) as adapter:
        yield adapter


def test_the_agent_answers_through_the_proxy(
    adapter: DockerAdapter, ours: tuple[UUID, Container]
) -> None:
    run_id, _ = ours
    answer = adapter.call_agent(
        run_id, ("sh", "-c", "cat; exit 7"), stdin=b"hello", timeout=LONG_WAIT
    )
    assert (answer.exit_code, answer.stdout) == (7, b"hello")


def test_a_program_goes_on_after_its_input_has_ended(
    adapter: DockerAdapter, ours: tuple[UUID, Container]
) -> None:
    run_id, _ = ours
    script = "cat > /dev/null; sleep 2; echo late"
    with contextlib.closing(adapter.open_agent(run_id, ("sh", "-c", script))) as channel:
        channel.write(b"something")
        channel.close_input()
        said = b""
        while piece := channel.read(LONG_WAIT):
            said += piece
        assert (said, channel.exit_code()) == (b"late\n", 0)


def test_much_goes_through_unchanged_in_both_directions(
    adapter: DockerAdapter, ours: tuple[UUID, Container]
) -> None:
    run_id, _ = ours
    sent = os.urandom(MIB) * 12
    answer = adapter.call_agent(run_id, ("cat",), stdin=sent, timeout=LONG_WAIT)
    assert hashlib.sha256(answer.stdout).digest() == hashlib.sha256(sent).digest()


def test_files_are_read_through_the_proxy(
    adapter: DockerAdapter, ours: tuple[UUID, Container]
) -> None:
    run_id, _ = ours
    with adapter.read_files(run_id, "/etc/debian_version") as chunks:
        assert chunks is not None
        assert len(b"".join(chunks)) >= 512
    with adapter.read_files(run_id, "/no/such file?") as chunks:
        assert chunks is None


def test_the_engine_says_who_it_is_and_nothing_more(
    opened: ServingEngineProxy, adapter: DockerAdapter, client: docker.DockerClient
) -> None:
    assert adapter.engine_id() == client.info()["ID"]
    status, body = opened.ask("GET", "/info")
    assert (status, list(json.loads(body))) == (200, ["ID"])


def _exec(**members: Any) -> dict[str, Any]:
    return {"User": "root", "Cmd": [AGENT, "true"], "AttachStdout": True, **members}


HOSTILE = {
    "create a container": ("POST", "/containers/create", {"Image": "x"}),
    "list containers": ("GET", "/containers/json?all=1", None),
    "start": ("POST", "/containers/{c}/start", None),
    "kill": ("POST", "/containers/{c}/kill", None),
    "remove": ("DELETE", "/containers/{c}", None),
    "attach": ("POST", "/containers/{c}/attach?stream=1", None),
    "logs": ("GET", "/containers/{c}/logs?stdout=1", None),
    "write files": ("PUT", "/containers/{c}/archive?path=/", None),
    "images": ("GET", "/images/json", None),
    "build": ("POST", "/build", None),
    "events": ("GET", "/events", None),
    "volumes": ("GET", "/volumes", None),
    "plugins": ("POST", "/plugins/pull", None),
    "session": ("POST", "/session", None),
    "dots": ("GET", "/containers/../images/json", None),
    "dots in a name": ("GET", "/containers/../json", None),
    "escaped dots": ("GET", "/containers/%2e%2e/json", None),
    "escaped slash": ("GET", "/containers/{c}%2Fjson", None),
    "escaped letter": ("GET", "/containers/{c}/jso%6e", None),
    "doubled slash": ("GET", "//containers/{c}/json", None),
    "odd version": ("GET", "/v1.41/../containers/{c}/json", None),
    "version of something": ("GET", "/v2.0/containers/{c}/json", None),
    "options": ("GET", "/containers/{c}/json?size=1", None),
    "fragment": ("GET", "/containers/{c}/json#", None),
    "lower case": ("GET", "/Containers/{c}/json", None),
    "short exec id": ("GET", "/exec/abc/json", None),
    "body of a question": ("GET", "/version", {}),
    "relative path": ("GET", "/containers/{c}/archive?path=etc", None),
    "no path": ("GET", "/containers/{c}/archive?path=", None),
    "other option": ("GET", "/containers/{c}/archive?path=/etc&copyUIDGID=1", None),
    "nul in a path": ("GET", "/containers/{c}/archive?path=/etc%00", None),
    "another program": ("POST", "/containers/{c}/exec", _exec(Cmd=["/bin/sh"])),
    "no program": ("POST", "/containers/{c}/exec", _exec(Cmd=[])),
    "program as text": ("POST", "/containers/{c}/exec", _exec(Cmd=AGENT)),
    "numbers": ("POST", "/containers/{c}/exec", _exec(Cmd=[AGENT, 1])),
    "privileged": ("POST", "/containers/{c}/exec", _exec(Privileged=True)),
    "variables": ("POST", "/containers/{c}/exec", _exec(Env=["LD_PRELOAD=/x"])),
    "folder": ("POST", "/containers/{c}/exec", _exec(WorkingDir="/tmp")),
    "somebody else": ("POST", "/containers/{c}/exec", _exec(User="workspace")),
    "nobody": ("POST", "/containers/{c}/exec", {"Cmd": [AGENT]}),
    "unknown member": ("POST", "/containers/{c}/exec", _exec(ConsoleSize=[1, 1])),
    "detached": ("POST", f"/exec/{'0' * 64}/start", {"Detach": True}),
    "odd size": ("POST", f"/exec/{'0' * 64}/resize?h=1", None),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_everything_else_is_refused(
    opened: ServingEngineProxy, ours: tuple[UUID, Container], what: str
) -> None:
    method, target, body = HOSTILE[what]
    status, said = opened.ask(method, target.replace("{c}", str(ours[1].id)), body)
    assert status == 403
    assert json.loads(said)["message"]


MALFORMED = {
    "no request": b"hello\r\n\r\n",
    "absolute": b"GET http://docker/version HTTP/1.1\r\n\r\n",
    "old": b"GET /version HTTP/1.0\r\n\r\n",
    "chunks": b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"GET /x HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 9\r\n\r\n",
    "signed length": b"GET /x HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
    "vast length": b"GET /x HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n",
    "folded": b"GET /x HTTP/1.1\r\nA: b\r\n Content-Length: 3\r\n\r\n",
    "space before colon": b"GET /x HTTP/1.1\r\nContent-Length : 3\r\n\r\n",
    "control": b"GET /x\x0b HTTP/1.1\r\n\r\n",
    "endless head": b"GET /version HTTP/1.1\r\nA: " + b"a" * 300_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_not_one_clear_request_is_answered_and_cut_off(
    opened: ServingEngineProxy, what: str
) -> None:
    try:
        status, _ = opened.say(MALFORMED[what])
    except (ConnectionResetError, BrokenPipeError):  # it may hang up before all has been said
        return
    assert status == 400


def test_after_a_refusal_nothing_more_is_heard(opened: ServingEngineProxy) -> None:
    both = request("GET", "/images/json", close=False) + request("GET", "/version")
    with contextlib.closing(opened.connect()) as connection:
        connection.sendall(both)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
    assert received.count(b"HTTP/1.1") == 1


def test_one_connection_serves_several_questions(opened: ServingEngineProxy) -> None:
    with contextlib.closing(opened.connect()) as connection:
        for _ in range(3):
            connection.sendall(request("GET", "/_ping", close=False))
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_anothers_container_is_not_there(
    opened: ServingEngineProxy, others: tuple[UUID, Container]
) -> None:
    container = others[1]
    for name in (str(container.id), str(container.name), str(container.id)[:12]):
        assert opened.ask("GET", f"/containers/{name}/json")[0] == 404
        assert opened.ask("POST", f"/containers/{name}/exec", _exec())[0] == 404
        assert opened.ask("GET", f"/containers/{name}/archive?path=/etc/passwd")[0] == 404


def test_a_container_that_has_our_label_from_its_image_is_not_there(
    opened: ServingEngineProxy, client: docker.DockerClient, image: str, instance: str
) -> None:
    context = tar_of(Dockerfile=f"FROM {image}\nLABEL svc.instance={instance}\n".encode())
    made, _ = client.images.build(fileobj=io.BytesIO(context), custom_context=True, forcerm=True)
    by_hand = client.containers.run(str(made.id), detach=True, network_mode="none")
    try:
        assert by_hand.labels == {"svc.instance": instance}
        assert opened.ask("GET", f"/containers/{by_hand.id}/json")[0] == 404
        assert opened.ask("POST", f"/containers/{by_hand.id}/exec", _exec())[0] == 404
    finally:
        remove_container(by_hand)
        client.images.remove(str(made.id))


def test_an_exec_in_anothers_container_is_not_there(
    opened: ServingEngineProxy, client: docker.DockerClient, others: tuple[UUID, Container]
) -> None:
    made = client.api.exec_create(others[1].id, ["touch", "/started"], user="root")["Id"]
    assert opened.ask("GET", f"/exec/{made}/json")[0] == 404
    assert opened.ask("POST", f"/exec/{made}/resize?h=1&w=1")[0] == 404
    assert opened.ask("POST", f"/exec/{made}/start", {"Detach": False})[0] == 404
    assert client.api.exec_inspect(made)["ExitCode"] is None


def test_the_adapter_sees_anothers_container_as_gone(
    opened: ServingEngineProxy, others: tuple[UUID, Container], instance: str
) -> None:
    adapter = DockerAdapter(opened.docker_host, instance)
    with pytest.raises(LaunchError) as caught:
        adapter.call_agent(others[0], ("true",), timeout=LONG_WAIT)
    assert caught.value.code == "runtime-gone"


def _held(opened: ServingEngineProxy, container: Container, *command: str) -> socket.socket:
    """Start a program that is silent, and stay connected to it."""
    body = _exec(Cmd=[AGENT, *command], AttachStdin=True, AttachStderr=True)
    status, said = opened.ask("POST", f"/containers/{container.id}/exec", body)
    assert status == 201
    connection = opened.connect()
    connection.sendall(request("POST", f"/exec/{json.loads(said)['Id']}/start", {}, close=False))
    head = connection.recv(65536)
    assert head.startswith((b"HTTP/1.1 101", b"HTTP/1.1 200"))
    return connection


def test_a_client_that_is_gone_holds_no_place(
    opened: ServingEngineProxy, ours: tuple[UUID, Container]
) -> None:
    _held(opened, ours[1], "sleep", "600").close()
    opened.wait_empty()


def test_a_client_that_goes_while_nothing_takes_its_input_holds_no_place(
    opened: ServingEngineProxy, ours: tuple[UUID, Container]
) -> None:
    connection = _held(opened, ours[1], "sleep", "600")
    connection.setblocking(False)
    # Until every buffer on the way to the program is full.
    quiet = 0
    while quiet < 20:
        try:
            connection.send(b"x" * 65536)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            wait_for(lambda: opened.proxy.open_connections == 1)
    connection.close()
    opened.wait_empty()


def test_a_client_that_does_not_leave_after_the_end_is_sent_away(
    opened: ServingEngineProxy, ours: tuple[UUID, Container]
) -> None:
    with contextlib.closing(_held(opened, ours[1], "true")):
        opened.wait_empty()


def test_who_holds_streams_keeps_nobody_from_asking(
    instance: str, ours: tuple[UUID, Container]
) -> None:
    with serving_engine_proxy(
        DOCKER_HOST, instance, EngineProxyLimits(asking=2, look=0.1)
    ) as opened:
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(contextlib.closing(_held(opened, ours[1], "sleep", "600")))
            assert opened.ask("GET", "/_ping")[0] == 200
        opened.wait_empty()


def test_more_than_there_is_room_for_are_told_so_at_once(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AWAY_SECONDS", LONG_WAIT)  # for who asks, and takes long for it
    with serving_engine_proxy(DOCKER_HOST, instance, EngineProxyLimits(asking=2)) as opened:
        with contextlib.closing(opened.connect()), contextlib.closing(opened.connect()):
            wait_for(lambda: opened.proxy.open_connections == 2)
            assert opened.ask("GET", "/_ping")[0] == 503
        opened.wait_empty()
        assert opened.ask("GET", "/_ping")[0] == 200


def test_who_is_sent_away_is_told_so_however_late_they_ask(
    instance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_AWAY_SECONDS", 0)
    with (
        serving_engine_proxy(DOCKER_HOST, instance, EngineProxyLimits(asking=1)) as opened,
        contextlib.closing(opened.connect()),
    ):
        wait_for(lambda: opened.proxy.open_connections == 1)
        with contextlib.closing(opened.connect()) as late:
            assert late.recv(100).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    "begun", [b"", b"GET /_pi", b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_who_does_not_finish_a_request_is_cut_off(instance: str, begun: bytes) -> None:
    with (
        serving_engine_proxy(DOCKER_HOST, instance, EngineProxyLimits(idle=0.2)) as opened,
        contextlib.suppress(ConnectionResetError, BrokenPipeError),  # before all has been said
    ):
        assert opened.say(begun) == (0, b"")


def test_without_an_engine_the_proxy_says_so(tmp_path: Path) -> None:
    with serving_engine_proxy(f"unix://{tmp_path}/none.sock", "svc") as opened:
        status, said = opened.ask("GET", "/version")
        assert (status, json.loads(said)["message"]) == (502, "The engine does not answer.")


def test_the_command_opens_a_proxy_for_its_group_and_closes_it(open_directory: Path) -> None:
    path = open_directory / "proxy" / "engine.sock"
    argv = [sys.executable, "manage.py", "engineproxy", "--listen", str(path)]
    path.parent.mkdir()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))  # as one that was killed leaves it
    first = subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert first.stdout is not None
    with first.stdout as log:
        try:
            assert b"engine_proxy_started" in log.readline()
            assert path.stat().st_mode & 0o777 == 0o660
            second = subprocess.run(
                argv, cwd=CHECKOUT, capture_output=True, text=True, timeout=LONG_WAIT, check=False
            )
            assert second.returncode != 0
            assert "Another proxy is open" in second.stderr
        finally:
            first.send_signal(signal.SIGTERM)
            assert first.wait(LONG_WAIT) == 0
    assert not path.exists()
