"""Connections that carry more than one thing: shared ones, forwarded ports, editors' servers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shlex
import socket
import tarfile
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.stack.free_ports import free_port
from tests.stack.runs import RAW
from tests.stack.service import GitServer, Stack
from tests.stack.ssh import HOST, SECONDS, Client
from tests.stack.ssh_access import SshAccess, access_of, gone
from tests.stack.worker_process import eventually
from tests.support.waiting import LONG_WAIT

pytestmark = pytest.mark.docker

MIB = 1024 * 1024
CHANNELS = 20
REQUESTS = 8

WEB_SERVER = """
import hashlib, http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        size = int(self.path.strip("/") or 0)
        body = hashlib.shake_256(self.path.encode()).digest(size) or b"root"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], os.getpid(), flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def access(
    stack: Stack, git_server: GitServer, run_queue: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SshAccess]:
    """One workspace for all tests here."""
    with access_of(stack, git_server, run_queue, tmp_path_factory.mktemp("connections")) as made:
        yield made


@pytest.fixture(scope="module")
def client(access: SshAccess) -> Client:
    """A client that may enter it."""
    return access.client()


def fetched(url: str, data: bytes | None = None) -> bytes:
    """Return what a web server answers."""
    with urllib.request.urlopen(url, data, timeout=LONG_WAIT) as answer:  # noqa: S310 - http, ours
        return bytes(answer.read())


# ---------------------------------------------------------------- one connection for many


def test_20_channels_of_one_connection_are_one_run_whose_commands_are_told_apart(
    access: SshAccess, client: Client
) -> None:
    with access.run() as run, client.connection() as shared, ThreadPoolExecutor(CHANNELS) as pool:
        command = "echo here; cat; sleep 0.1; echo number {0} >&2; exit {0}"
        asked = [
            pool.submit(client.command, command.format(number), *shared, given=b"%d\n" % number)
            for number in range(CHANNELS)
        ]
        for number, one in enumerate(asked):
            done = one.result()
            assert (done.code, done.out, done.err) == (
                number,
                b"here\n%d\n" % number,
                f"number {number}\n",
            )
    assert access.place.ended(run.id)["status"] == "completed"
    assert access.place.loss(run.id)["complete"]
    started = access.place.timeline(run.id, "processStarted")
    leaders = [event for event in started if "channel" in event["ref"]]
    assert len({event["ref"]["channel"] for event in leaders}) == CHANNELS
    wrote = set()
    for event in leaders:
        path = f"/v1/runs/{run.id}/scrollback?stream=stdout&processId={event['processId']}"
        wrote.add(access.place.stack.api.get(path, headers=RAW).content)
    assert wrote == {b"here\n%d\n" % number for number in range(CHANNELS)}
    access.place.verify(run.id)


def test_channels_of_one_connection_are_open_at_once(client: Client) -> None:
    with client.connection() as shared, contextlib.ExitStack() as all_of_them:
        script = "echo open; cat; echo closed"
        open_ones = [
            all_of_them.enter_context(client.begun(script, *shared)) for _ in range(CHANNELS)
        ]
        for begun in reversed(open_ones):
            out, _ = begun.process.communicate(b"told\n", SECONDS)
            assert out == b"told\nclosed\n"


@pytest.mark.slow
def test_every_exit_code_is_told(client: Client) -> None:
    with client.connection() as shared:
        assert [client.command(f"exit {code}", *shared).code for code in range(256)] == [
            *range(256)
        ]


def test_a_channel_whose_client_is_killed_ends_alone(access: SshAccess, client: Client) -> None:
    with client.connection() as shared:
        script = "echo $$; exec sleep 600"
        with client.begun(script, *shared) as killed, client.begun(script, *shared) as kept:
            killed.process.kill()
            gone(access.place, killed.line)
            assert client.said(f"kill -0 {kept.line} && echo still", *shared) == b"still\n"
            assert kept.process.poll() is None


def test_a_slow_reader_holds_nobody_else_up(client: Client) -> None:
    # What is not read fills every buffer on the way.
    with client.connection() as shared, client.begun("yes", *shared):
        assert len(client.said(f"head -c {16 * MIB} /dev/zero", *shared)) == 16 * MIB


def test_a_connection_of_nothing_but_keepalives_stays_and_is_a_run(
    access: SshAccess, client: Client
) -> None:
    path = client.folder / "idle.log"
    # However slow the gateway is, the client does not give it up.
    patient = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=300")
    alive = ("-v", "-E", str(path), *patient)
    with access.run() as run, client.connection(*alive) as shared:
        eventually(
            lambda: path.read_text().count("keepalive@openssh.com") >= 5,
            what="the gateway has asked five times whether the client is there",
        )
        assert access.place.read(access.runs()[0])["status"] == "running"
        assert client.said("echo still", *shared) == b"still\n"
    assert access.place.completed(run.id)


def test_a_connection_without_any_command_is_a_run_that_completed(
    access: SshAccess, client: Client
) -> None:
    before = len(access.runs())
    with access.run() as run, client.connection():
        eventually(lambda: len(access.runs()) > before, what="the run is announced")
        eventually(
            lambda: access.place.read(access.runs()[0])["status"] == "running", what="it has begun"
        )
    shown = access.place.completed(run.id)
    assert "exitCode" not in shown
    assert access.place.timeline(run.id, "processStarted") == []


# ---------------------------------------------------------------- forwarded ports


@pytest.fixture(scope="module")
def web(client: Client) -> Iterator[int]:
    """A web server in the workspace; its port."""
    with client.begun(f"exec python3 -c {shlex.quote(WEB_SERVER)}") as begun:
        yield int(begun.line.split()[0])


def test_a_forwarded_port_carries_many_requests_at_once(
    access: SshAccess, client: Client, web: int
) -> None:
    port = free_port()
    with access.run() as run, client.connection("-L", f"{port}:localhost:{web}"):
        url = f"http://127.0.0.1:{port}"
        sizes = [4 * MIB + number for number in range(REQUESTS)]
        with ThreadPoolExecutor(REQUESTS) as pool:
            bodies = list(pool.map(lambda size: fetched(f"{url}/{size}"), sizes))
        for size, body in zip(sizes, bodies, strict=True):
            assert body == hashlib.shake_256(f"/{size}".encode()).digest(size)
        sent = os.urandom(8 * MIB)
        assert fetched(url, sent) == hashlib.sha256(sent).hexdigest().encode()
    access.place.completed(run.id)
    opened = access.place.timeline(run.id, "forwardOpened")
    assert {(event["ref"]["host"], event["ref"]["port"]) for event in opened} == {
        ("localhost", web)
    }
    closed = [event["ref"] for event in access.place.timeline(run.id, "forwardClosed")]
    assert len(opened) == len(closed) == REQUESTS + 1
    assert max(event["sentBytes"] for event in closed) > 8 * MIB
    assert sum(event["receivedBytes"] > 4 * MIB for event in closed) == REQUESTS


def test_one_connection_may_be_carried_over_the_clients_own_input_and_output(
    client: Client, web: int
) -> None:
    argv = ("ssh", "-F", str(client.config), "-W", f"127.0.0.1:{web}", HOST)
    with client.start(*argv) as process:
        out, _ = process.communicate(b"GET / HTTP/1.0\r\n\r\n", SECONDS)
    assert out.endswith(b"\r\n\r\nroot")


def test_a_port_at_which_nobody_listens_is_refused_and_the_connection_stays(
    client: Client,
) -> None:
    with client.connection() as shared:
        done = client.ssh(*shared, "-o", "LogLevel=INFO", "-W", "localhost:1", HOST)
        assert done.code != 0
        assert client.said("echo still", *shared) == b"still\n"
    done = client.ssh("-o", "LogLevel=INFO", "-W", "localhost:1", HOST)
    assert "open failed: connect failed" in done.err


def test_a_proxy_for_the_browser_reaches_the_workspace(client: Client, web: int) -> None:
    port = free_port()
    name = b"localhost"
    with client.connection("-D", str(port)), socket.create_connection(("127.0.0.1", port)) as proxy:
        proxy.settimeout(90)
        proxy.sendall(b"\5\1\0")  # SOCKS 5, without a password
        assert proxy.recv(2) == b"\5\0"
        proxy.sendall(b"\5\1\0\3" + bytes([len(name)]) + name + web.to_bytes(2, "big"))
        assert proxy.recv(10)[:2] == b"\5\0"
        proxy.sendall(b"GET /1000 HTTP/1.0\r\n\r\n")
        with proxy.makefile("rb") as answer:
            assert answer.read().endswith(hashlib.shake_256(b"/1000").digest(1000))


# ---------------------------------------------------------------- an editor's remote mode


def server_archive() -> bytes:
    """Return an archive with the editor's server."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, body in (("server.py", WEB_SERVER.encode()), ("assets", os.urandom(2 * MIB))):
            member = tarfile.TarInfo(f"server/{name}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    return content.getvalue()


def test_an_editor_installs_its_server_starts_it_and_finds_it_again(
    access: SshAccess, client: Client
) -> None:
    start = (
        "cd ~/.editor-server/server && { setsid nohup python3 server.py > log 2>&1 < /dev/null &"
        " } && until [ -s log ]; do sleep 0.05; done && cat log"
    )
    port = free_port()
    forward = ("-L", f"{port}:127.0.0.1:")
    with access.run() as run, client.connection() as shared:
        assert client.said("uname -sm", *shared).startswith(b"Linux ")
        assert client.said("mkdir -p ~/.editor-server && echo made", *shared) == b"made\n"
        assert client.command("test -e ~/.editor-server/server", *shared).code == 1
        unpack = "tar -xzf - -C ~/.editor-server && echo unpacked"
        archive = server_archive()
        assert client.said(unpack, *shared, given=archive) == b"unpacked\n"
        web, pid = client.said(start, *shared).decode().split()
        added = client.ssh(*shared, "-O", "forward", forward[0], f"{forward[1]}{web}", HOST)
        assert added.code == 0, added
        assert fetched(f"http://127.0.0.1:{port}/5") == hashlib.shake_256(b"/5").digest(5)
    access.place.completed(run.id)

    with client.connection(forward[0], f"{forward[1]}{web}") as shared:
        assert fetched(f"http://127.0.0.1:{port}/7") == hashlib.shake_256(b"/7").digest(7)
        assert client.said(f"kill {pid} && echo killed", *shared) == b"killed\n"
    gone(access.place, pid)
    client.said("rm -r ~/.editor-server")


# ---------------------------------------------------------------- a tool that runs playbooks


def test_a_tool_copies_its_module_and_runs_it_over_a_connection_that_it_leaves_open(
    access: SshAccess, client: Client, tmp_path: Path
) -> None:
    """What Ansible does: the first command opens the connection, and it outlives the command."""
    module = tmp_path / "module.py"
    module.write_text("import json, sys\nprint(json.dumps({'got': sys.stdin.read()}))\n")
    path = client.folder / "persisting"
    kept = (
        "-C",
        "-o",
        "ControlMaster=auto",
        "-o",
        "ControlPersist=60s",
        "-o",
        f"ControlPath={path}",
    )
    folder = "~/.ansible/tmp/ansible-1"
    with access.run() as run:
        home = client.said("/bin/sh -c 'echo ~ && sleep 0'", *kept).decode().strip()
        made = f'( umask 77 && mkdir -p "$( echo {folder} )" && echo done ) && sleep 0'
        assert client.said(f"/bin/sh -c '{made}'", *kept) == b"done\n"
        batch = f"put {module} {home}/.ansible/tmp/ansible-1/module.py\n".encode()
        sftp = ("sftp", "-b", "-", *kept, "-F", str(client.config), HOST)
        assert client.run(*sftp, given=batch).code == 0
        client.said(f"/bin/sh -c 'chmod u+rwx {folder} {folder}/module.py && sleep 0'", *kept)
        execute = f"/bin/sh -c '/usr/bin/python3 {folder}/module.py && sleep 0'"
        assert client.said(execute, *kept, given=b"words") == b'{"got": "words"}\n'
        with client.terminal(f"echo ready; {execute}", *kept) as terminal:
            terminal.until(b"ready\r\n")
            terminal.type("typed\n\x04")
            assert terminal.ended() == 0
        assert b'{"got": "typed' in terminal.said
        client.said(f"/bin/sh -c 'rm -f -r {folder} > /dev/null 2>&1 && sleep 0'", *kept)
        assert client.ssh("-S", str(path), "-O", "exit", HOST).code == 0
    access.place.completed(run.id)
