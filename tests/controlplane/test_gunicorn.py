"""What only a real HTTP server shows: bodies in chunks, and bodies that are too large."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.stack.free_ports import free_port
from tests.support.waiting import LONG_WAIT

ROOT = Path(__file__).resolve().parents[2]
POST = b"POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\n"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Serve the API the way a deployment does, on a port of its own."""
    free = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
        cwd=ROOT,
        env={**os.environ, "SVC_API_PORT": str(free), "SVC_API_WORKERS": "1", "SVC_WEB_PORT": "0"},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + LONG_WAIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", free)) == 0:
                    break
            assert server.poll() is None, "gunicorn ended"
            assert time.monotonic() < deadline, "gunicorn does not listen"
            time.sleep(0.1)
        yield free
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(LONG_WAIT)


def post(port: int, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """POST ``body``; an iterable is sent in chunks, without a Content-Length."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    try:
        connection.request("POST", "/v1/sandboxes", body, headers)
        answer = connection.getresponse()
        assert answer.getheader("content-type") == "application/problem+json"
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "name", "value", "status"),
    [
        ("/elsewhere/healthz", "SCRIPT_NAME", "/elsewhere", 404),
        ("/elsewhere/healthz", "Script_Name", "/elsewhere", 404),
        ("/healthz", "SCRIPT_NAME", "/healthz", 200),
        ("/healthz", "SCRIPT_NAME", "/elsewhere", 200),
        ("/nothing", "PATH_INFO", "/healthz", 404),
    ],
)
def test_no_client_takes_a_part_out_of_a_path(
    port: int, path: str, name: str, value: str, status: int
) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)) as connection:
        connection.request("GET", path, headers={name: value})
        assert connection.getresponse().status == status


def test_a_body_in_chunks_is_read(port: int) -> None:
    chunks = iter([b'{"ownerUserId": "a", ', b'"tag": "!", "rep', b'ository": "NO"}'])
    status, body = post(port, chunks, JSON)
    assert status == 400
    codes = {fault["pointer"]: fault["code"] for fault in body["errors"]}
    assert codes["/tag"] == codes["/repository"] == "invalid-format"
    assert "/ownerUserId" not in codes


def test_ten_mebibytes_in_chunks_are_a_413(port: int) -> None:
    chunks = (b"a" * 65536 for _ in range(160))
    status, body = post(port, chunks, JSON)
    assert status == 413
    assert body["code"] == "body-too-large"


def test_ten_mebibytes_with_a_length_are_a_413(port: int) -> None:
    status, body = post(port, b"a" * 10 * 1024 * 1024, JSON)
    assert status == 413
    assert body["code"] == "body-too-large"


def test_a_body_of_exactly_the_limit_in_chunks_is_read(port: int) -> None:
    limit = 1024 * 1024
    status, body = post(port, iter([b"1" * 1000, b" " * (limit - 1000)]), JSON)
    assert (status, body["code"]) == (400, "malformed-json")
    status, body = post(port, iter([b"1", b" " * limit]), JSON)
    assert (status, body["code"]) == (413, "body-too-large")


def test_the_server_lives_on_after_requests_that_are_no_http(port: int) -> None:
    for garbage in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"%sTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" % POST,
        b"%sTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n" % POST,
        b"GET /v1/workspaces?" + b"a" * 80_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\x00b\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=LONG_WAIT) as raw:
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"Content-Type: application/problem+json" in head, (garbage, answer[:200])
        assert head.split(b" ")[1] == str(json.loads(body)["status"]).encode(), garbage
        assert json.loads(body)["code"] in {"malformed-request", "head-too-large"}, garbage
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


def test_a_parameter_is_as_long_as_the_description_allows(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG_WAIT)
    connection.request("GET", f"/v1/workspaces/0/files?pathBase64={'a' * 16_384}")
    assert connection.getresponse().status == 404
    connection.close()


def start(api: int, web: int) -> subprocess.Popen[str]:
    """Serve on both ports, by the settings alone."""
    return subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
        cwd=ROOT,
        env={
            **os.environ,
            "SVC_API_PORT": str(api),
            "SVC_WEB_PORT": str(web),
            "SVC_API_WORKERS": "1",
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_are_forked_from_one_that_has_loaded_the_application() -> None:
    api = free_port()
    server = start(api, 0)
    try:
        deadline = time.monotonic() + LONG_WAIT
        while forked(server.pid) == []:
            assert server.poll() is None, "gunicorn ended"
            assert time.monotonic() < deadline, "no process was forked"
            time.sleep(0.05)
        # The database's library comes with the models.
        assert "libpq" in Path(f"/proc/{server.pid}/maps").read_text()
        assert sockets_of(server.pid) == 1  # it listens
    finally:
        server.terminate()
        server.communicate(timeout=LONG_WAIT)


def sockets_of(pid: int) -> int:
    """Return how many sockets a process has, which may open and close files meanwhile."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(path.readlink()).startswith("socket:")
    return found


def forked(pid: int) -> list[str]:
    """Return the processes below one."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_admin_is_served_on_the_webs_port_too() -> None:
    api, web = free_port(), free_port()
    server = start(api, web)
    try:
        for number in (api, web):
            deadline = time.monotonic() + LONG_WAIT
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", number)) == 0:
                        break
                assert server.poll() is None, "gunicorn ended"
                assert time.monotonic() < deadline, f"nobody listens on {number}"
                time.sleep(0.1)
            connection = http.client.HTTPConnection("127.0.0.1", number, timeout=LONG_WAIT)
            connection.request("GET", "/docs")
            answer = connection.getresponse()
            assert answer.status == 200
            assert answer.getheader("link") == f'<http://localhost:{web}/docs>; rel="canonical"'
            connection.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=LONG_WAIT)


def test_one_port_for_both_is_listened_on_once() -> None:
    both = free_port()
    server = start(both, both)
    try:
        deadline = time.monotonic() + LONG_WAIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", both)) == 0:
                    break
            assert server.poll() is None, "gunicorn ended"
            assert time.monotonic() < deadline, f"nobody listens on {both}"
            time.sleep(0.1)
        connection = http.client.HTTPConnection("127.0.0.1", both, timeout=LONG_WAIT)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=LONG_WAIT)


@pytest.mark.parametrize("taken", ["api", "web"])
def test_a_port_that_is_taken_is_a_clear_error(taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        occupied: int = other.getsockname()[1]
        ports = {"api": free_port(), "web": free_port(), taken: occupied}
        server = start(**ports)
        _, told = server.communicate(timeout=LONG_WAIT)
    assert server.returncode != 0
    assert f"Cannot listen on 127.0.0.1 port {occupied}: Address already in use." in told
    assert "SVC_WEB_PORT (0: none) and SVC_ADMIN_PORT" in told


@pytest.mark.parametrize("name", ["SVC_API_WORKERS", "SVC_API_THREADS"])
@pytest.mark.parametrize("value", ["0", "many", ""])
def test_a_number_of_processes_or_threads_that_is_none_is_told(name: str, value: str) -> None:
    """With no process gunicorn takes connections, and nobody ever answers."""
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "controlplane.wsgi"],
        cwd=ROOT,
        env={**os.environ, "SVC_API_PORT": str(free_port()), "SVC_WEB_PORT": "0", name: value},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, told = server.communicate(timeout=LONG_WAIT)
    finally:
        server.kill()
        server.wait(LONG_WAIT)
    assert server.returncode != 0
    assert told.splitlines()[0] == "The environment is not valid."
    assert f"  {name}: " in told
    assert "Traceback" not in told


@pytest.mark.docker
def test_it_serves_where_nothing_can_be_written(tmp_path: Path) -> None:
    """Its folders may be read-only or full: what it keeps is in the database."""
    mounts = """
        for folder in /tmp /var/tmp "$PWD"; do
            mount --bind "$folder" "$folder" && mount -o remount,bind,ro "$folder" || exit 99
        done
        cd "$PWD" && exec "$@"
    """
    port = free_port()
    server = subprocess.Popen(
        [
            *("unshare", "--mount", "--", "sh", "-c", mounts, "sh"),
            *(sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py"),
            "controlplane.wsgi",
        ],
        cwd=ROOT,
        env={**os.environ, "SVC_API_PORT": str(port), "SVC_API_WORKERS": "1", "SVC_WEB_PORT": "0"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + LONG_WAIT
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, server.communicate()[1]
            assert time.monotonic() < deadline, "gunicorn does not listen"
            time.sleep(0.1)
        status, body = post(port, b"{" + b" " * 500_000 + b"}", JSON)
        assert (status, body["code"]) == (400, "validation-failed")
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=LONG_WAIT)
