"""A control plane and an engine that answer what nobody should: clear words, and nothing hangs."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runs.gateway.conftest import Hall, gateway_of
from tests.runs.gateway.enemy import ACCIDENTS, own_memory
from tests.runs.gateway.scripted_engine import CONTAINER
from tests.stack.gateway_process import GatewayProcess
from tests.stack.ssh import Done, short_folder
from tests.support.waiting import LONG_WAIT

BOUND_SECONDS = LONG_WAIT
Answer = Callable[[socket.socket], None]


class Server:
    """Hears one request per connection and answers it as it is told."""

    def __init__(self, listening: socket.socket, url: str, answer: Answer) -> None:
        self._listening = listening
        self.url = url
        self.answer = answer
        self._stopped = threading.Event()
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._kept.append(connection)
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.recv(65536)
            self.answer(connection)

    def stop(self) -> None:
        """End it."""
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for one in [self._listening, *self._kept]:
            one.close()


@contextlib.contextmanager
def api_that(answer: Answer) -> Iterator[Server]:
    """Serve such an API."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = Server(listening, url, answer)
        try:
            yield server
        finally:
            server.stop()


def said(status: str, body: bytes = b"", *headers: str, length: int | None = None) -> Answer:
    """Return what answers that."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    head = "\r\n".join([*lines, *headers, "", ""]).encode()

    def answer(connection: socket.socket) -> None:
        connection.sendall(head + body)
        connection.close()

    return answer


def drop_by_drop(connection: socket.socket) -> None:
    """Answer so slowly that it never ends."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{")
    for _ in range(400):
        time.sleep(0.5)
        connection.sendall(b" ")


def hangs(connection: socket.socket) -> None:
    """Never answer; its client closes."""
    while connection.recv(65536):
        pass


def without_end(connection: socket.socket) -> None:
    """Answer with more than anybody keeps."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500000000\r\n\r\n{")
    for _ in range(50):
        connection.sendall(b" " * 1_000_000)


BOMB = gzip.compress(bytes(300_000_000), 9)
NESTED = b"[" * 500_000
ANSWERS: list[tuple[str, Answer]] = [
    ("garbage", lambda connection: connection.sendall(b"\xff\x00garbage\r\n\r\n" * 100)),
    ("nothing", lambda connection: connection.close()),
    ("redirect", said("302 Found", b"", "Location: http://127.0.0.1:1/elsewhere")),
    ("html", said("200 OK", b"<html>\x1b[2J</html>")),
    ("list", said("200 OK", b"[]")),
    ("shape", said("200 OK", json.dumps({"principalId": ["\x1b"], "sshKeyId": 1}).encode())),
    ("nested", said("200 OK", NESTED)),
    ("cut", said("200 OK", b"{", length=1000)),
    ("bomb", said("200 OK", BOMB, "Content-Encoding: gzip")),
    ("bad gzip", said("200 OK", b"no gzip", "Content-Encoding: gzip")),
    ("500", said("500 Oops", b"Traceback \x1b[31m")),
    ("words", said("403 No", json.dumps({"code": "x", "detail": "\x1b[2J\n" * 900}).encode())),
    ("endless", without_end),
    ("headers", said("200 OK", b"{}", *[f"X-{n}: {'y' * 1000}" for n in range(300)])),
]


@pytest.fixture(scope="module")
def odd_api(whole_hall: Hall) -> Iterator[tuple[Server, GatewayProcess]]:
    """An API that answers what a test says, and a gateway that asks it."""
    with api_that(hangs) as server:
        gateway = gateway_of(
            *(whole_hall.folder, whole_hall.service, whole_hall.engine),
            SSH_GATEWAY_API_BASE_URL=server.url,
        )
        yield server, gateway
        gateway.stop()


@pytest.mark.parametrize("answer", [a for _, a in ANSWERS], ids=[name for name, _ in ANSWERS])
def test_an_api_that_answers_nonsense_is_told_in_words(
    hall: Hall, odd_api: tuple[Server, GatewayProcess], answer: Answer
) -> None:
    server, gateway = odd_api
    server.answer = answer
    done = refused(hall, gateway)
    assert done.err.strip().isprintable()


def refused(hall: Hall, gateway: GatewayProcess) -> Done:
    """Enter by this gateway, which refuses in words and keeps nothing of what it was sent."""
    client = hall.client(gateway=gateway)
    before = own_memory(gateway.process.pid)
    started = time.monotonic()
    done = client.command("true")
    assert time.monotonic() - started < BOUND_SECONDS
    assert done.code == 255
    assert "Received disconnect" in done.err
    assert own_memory(gateway.process.pid) - before < 32 * 1024 * 1024
    assert not [accident for accident in ACCIDENTS if accident in gateway.told]
    return done


@contextlib.contextmanager
def engine_that(folder: Path, answer: Answer) -> Iterator[Server]:
    """Serve such an engine."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "engine"))
        listening.listen(8)
        server = Server(listening, f"unix://{folder / 'engine'}", answer)
        try:
            yield server
        finally:
            server.stop()


def chunked(*parts: bytes) -> Answer:
    """Return what answers in such chunks."""
    head = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    return lambda connection: connection.sendall(head + b"".join(parts))


def frames_of_garbage(connection: socket.socket) -> None:
    """Start the exec, and send no frame of an agent."""
    identity = json.dumps({"Id": CONTAINER}).encode()
    connection.sendall(f"HTTP/1.1 201 X\r\nContent-Length: {len(identity)}\r\n\r\n".encode())
    connection.sendall(identity)
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 101 UPGRADED\r\n\r\n" + b"\x01\0\0\0\xff\xff\xff\xff" * 20_000)


def chunks_without_end(connection: socket.socket) -> None:
    """Send one chunk after the other."""
    connection.sendall(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(500):
        connection.sendall(b"7a120\r\n" + bytes(500_000) + b"\r\n")


ENGINES: list[tuple[str, Answer]] = [
    ("garbage", lambda connection: connection.sendall(b"\xff\x00" * 50_000)),
    ("nothing", lambda connection: connection.close()),
    ("size", chunked(b"no size\r\n")),
    ("negative", chunked(b"-5\r\n" * 1000)),
    ("endless", chunks_without_end),
    ("nested", said("201 Created", NESTED)),
    ("no id", said("201 Created", b'{"Id": "../../x"}')),
    ("frames", frames_of_garbage),
]


@pytest.fixture(scope="module")
def odd_engine(whole_hall: Hall) -> Iterator[tuple[Server, GatewayProcess]]:
    """An engine that answers what a test says, and a gateway that asks it."""
    with short_folder() as folder, engine_that(folder, hangs) as server:
        gateway = gateway_of(
            *(whole_hall.folder, whole_hall.service, whole_hall.engine), DOCKER_HOST=server.url
        )
        yield server, gateway
        gateway.stop()


@pytest.mark.parametrize("answer", [a for _, a in ENGINES], ids=[name for name, _ in ENGINES])
def test_an_engine_that_answers_nonsense_is_told_in_words(
    hall: Hall, odd_engine: tuple[Server, GatewayProcess], answer: Answer
) -> None:
    server, gateway = odd_engine
    server.answer = answer
    assert "workspace" in refused(hall, gateway).err


@pytest.mark.slow
def test_an_api_or_an_engine_that_never_finishes_is_given_up_on(
    hall: Hall,
    odd_api: tuple[Server, GatewayProcess],
    odd_engine: tuple[Server, GatewayProcess],
) -> None:
    odd_api[0].answer = odd_engine[0].answer = hangs
    with api_that(drop_by_drop) as slow:
        gateways = [
            odd_api[1],
            hall.another_gateway(SSH_GATEWAY_API_BASE_URL=slow.url),
            odd_engine[1],
        ]
        clients = [hall.client(gateway=gateway) for gateway in gateways]
        with ThreadPoolExecutor() as pool:  # together, as each waits for a time limit
            *apis, engine = pool.map(lambda client: client.command("true"), clients)
    for done in apis:
        assert "the control plane cannot be reached" in done.err
    assert "The Docker Engine does not answer" in engine.err
